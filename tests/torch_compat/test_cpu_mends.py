"""What is asked of gloo leaves nothing behind."""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from fsdp_migrate.runtime import end_process_group
from fsdp_migrate.torch_compat.cpu_mends import mend_gloo_averaging


def test_a_barrier_after_gloo_was_asked_for_averages_passes() -> None:
    """Up to torch 2.8 gloo refuses them to one rank, and 1 barrier of 11 failed by that refusal."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,))
    try:
        for _ in range(50):
            mend_gloo_averaging(mesh, [])
            dist.barrier()
    finally:
        end_process_group()
