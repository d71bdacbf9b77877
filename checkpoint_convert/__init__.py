"""FSDP1-era checkpoints in, FSDP2 checkpoints out."""
