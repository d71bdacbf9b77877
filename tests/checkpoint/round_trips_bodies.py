"""Random states that two ranks save together, with tensors divided between them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from tests.checkpoint.round_trip import state_of


def save_draws(seeds: list[int], folder: str) -> list[int]:
    """Save the states of draws that one process can save, each in a folder of its number; return which."""
    warnings.simplefilter("ignore")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    saved: list[int] = []
    for seed in seeds:
        state = state_of(seed)
        state["model"] = {name: _divided(tensor, mesh) for name, tensor in state["model"].items()}
        for moments in state.get("optimizer", {}).get("state", {}).values():
            moments.update({name: _divided(tensor, mesh) for name, tensor in moments.items()})
        path = Path(folder, str(seed))
        try:
            dcp.save(state, checkpoint_id=path)
        except BaseException:  # torch's CheckpointException is no Exception
            continue
        saved.append(seed)
    return saved


def _divided(tensor: torch.Tensor, mesh: DeviceMesh) -> Any:
    """Return a tensor of which this rank holds some rows."""
    if not tensor.dim() or tensor.shape[0] < dist.get_world_size():
        return tensor
    rows = -(-tensor.shape[0] // dist.get_world_size())
    own = tensor.detach()[rows * dist.get_rank() :][:rows].clone()
    strides = tensor.detach().contiguous().stride()
    return DTensor.from_local(own, mesh, [Shard(0)], run_check=False, shape=tensor.shape, stride=strides)
