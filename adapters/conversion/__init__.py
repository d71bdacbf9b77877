"""A text or a command of any framework, converted."""
