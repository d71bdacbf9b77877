"""Carry out a plan: where each item goes, who writes it, and how ranks share the work."""
