"""What an output looks like on disk: one file per target."""
