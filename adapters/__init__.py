"""Frameworks: their FSDP1 words in, their FSDP2 words out."""
