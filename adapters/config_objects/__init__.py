"""Composer's and Accelerate's own config objects: the FSDP1 arguments that they stand for."""
