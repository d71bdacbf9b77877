"""Is a checkpoint whole, and do two hold the same?"""
