"""Read sources: what they look like on disk, one file per layout, and how each becomes a manifest."""
