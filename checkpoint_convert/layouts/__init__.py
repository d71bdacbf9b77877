"""What a source looks like on disk: one file per layout."""
