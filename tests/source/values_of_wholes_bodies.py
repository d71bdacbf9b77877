"""What ranks ask of DTensors for tests/source/test_values_of_wholes.py."""

from __future__ import annotations

from typing import cast

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor


def ask_dtensors() -> dict[str, object]:
    """Compare two DTensors that differ on the second rank alone, and put a vector into a parameter."""
    mesh = init_device_mesh("cpu", (2,))
    one = distribute_tensor(torch.ones(4, 2), mesh, [Shard(0)])
    other = cast("DTensor", one.clone())
    if torch.distributed.get_rank() == 1:
        other.to_local()[0, 0] = 2
    try:
        torch.allclose(one, other)
        is_refused = False
    except Exception:
        is_refused = True
    parameter = torch.nn.Parameter(one)
    torch.nn.utils.vector_to_parameters(torch.full((8,), 3.0), [parameter])
    return {
        "is_refused": is_refused,
        "equal": torch.equal(one, other),
        "parts": torch.equal(one.to_local(), other.to_local()),
        "written": cast("DTensor", parameter.data).to_local()[0, 0].item(),
    }
