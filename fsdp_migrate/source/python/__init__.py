"""What knows Python's syntax: trees, names, models, text."""
