"""What people see of each command, on stderr. The only importer of rich."""
