"""Move a training run from PyTorch FSDP1 to FSDP2."""
