"""Tensor parallel, activation checkpointing, then FSDP over the other dimension of the same mesh.

torchrun --nproc-per-node 4 examples/tp_fsdp.py
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from fsdp_migrate import prepare_fully_shard, shard_plan
from fsdp_migrate.runtime import clip_grad_norm_, end_process_group
from fsdp_migrate.tensor_parallel import apply_tensor_parallel


class Block(nn.Module):
    """A residual feed-forward block."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.up(x))
        return x + torch.tanh(self.down(hidden))


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
    model: Any = nn.Sequential(Block(), Block())
    apply_tensor_parallel(model, mesh["tp"], {"*.up": ColwiseParallel(), "*.down": RowwiseParallel()})
    model = prepare_fully_shard(
        model,
        {"auto_wrap_policy": {Block}, "device_id": "cpu"},
        mesh=mesh["dp"],
        activation_checkpointing=Block,
    )
    if dist.get_rank() == 0:
        for parameter in shard_plan(model).parallel:
            print(f"{parameter.name}: {parameter.placements[0]} over {parameter.dims[0]}")
    print(f"rank {dist.get_rank()}: {tuple(model[0].up.weight.to_local().shape)} of (16, 8)")

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data_rank = mesh.get_local_rank("dp")  # ranks of one tensor-parallel group have the same data
    for step in range(3):
        inputs = torch.randn(4, 8, generator=torch.Generator().manual_seed(data_rank))
        loss = (model(inputs) - inputs.roll(1, 1)).square().mean()
        loss.backward()
        clip_grad_norm_(model, max_norm=1.0)  # torch's own does not mix meshes
        optimizer.step()
        optimizer.zero_grad()
        average = loss.detach()
        dist.all_reduce(average)
        if dist.get_rank() == 0:
            print(f"step {step} loss {average.item() / dist.get_world_size():.6f}")
    end_process_group()


if __name__ == "__main__":
    main()
