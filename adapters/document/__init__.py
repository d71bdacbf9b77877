"""YAML and JSON as nodes that know where they stand in the text, and edits that leave the rest alone."""
