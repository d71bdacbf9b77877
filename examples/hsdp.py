"""HYBRID_SHARD: sharded within a group of ranks, replicated over the groups; a nameless mesh will do.

torchrun --nproc-per-node 4 examples/hsdp.py
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import ShardingStrategy

from fsdp_migrate import prepare_fully_shard
from fsdp_migrate.runtime import end_process_group


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    # Two nodes of two ranks. FSDP1 takes a mesh without names; fully_shard needs them, so they are given.
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2))
    model = prepare_fully_shard(
        nn.Sequential(nn.Linear(6, 13), nn.Tanh(), nn.Linear(13, 6)),
        {
            "sharding_strategy": ShardingStrategy.HYBRID_SHARD,
            "device_mesh": mesh,
            "auto_wrap_policy": {nn.Linear},
        },
    )
    weight: Any = model[0].weight
    print(f"rank {dist.get_rank()}: {weight.device_mesh.mesh_dim_names} {tuple(weight.to_local().shape)}")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        inputs = torch.randn(4, 6, generator=torch.Generator().manual_seed(dist.get_rank()))
        loss = (model(inputs) - inputs).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        average = loss.detach()
        dist.all_reduce(average)
        if dist.get_rank() == 0:
            print(f"step {step} loss {average.item() / dist.get_world_size():.6f}")
    end_process_group()


if __name__ == "__main__":
    main()
