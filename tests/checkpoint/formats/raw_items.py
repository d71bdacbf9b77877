"""Tensors as they are within an item."""

from __future__ import annotations

import torch

from fsdp_migrate.checkpoint_convert.manifest.dtypes import DTYPES


HERE = [name for name in DTYPES if hasattr(torch, name)]


def sample(dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    tensor = torch.zeros(shape, dtype=getattr(torch, dtype))
    if tensor.numel():
        top = 2 if dtype == "bool" else 256
        raw = tensor.view(-1).view(torch.uint8)
        raw.copy_(torch.randint(0, top, raw.shape, dtype=torch.uint8))
    return tensor


def raw(tensor: torch.Tensor) -> bytes:
    flat = tensor.contiguous().view(-1)
    return bytes(flat.view(torch.uint8).numpy().tobytes()) if flat.numel() else b""
