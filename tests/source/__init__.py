"""Finding FSDP1 in Python sources, and rewriting them."""
