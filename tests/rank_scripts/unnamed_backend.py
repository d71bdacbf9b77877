"""Run under torchrun: writes the gradient that a model has in a group made without naming a backend."""

from __future__ import annotations

import sys

import torch.distributed as dist

from fsdp_migrate.runtime import end_process_group
from tests.rank_bodies.prepare import gloo_gradients


if __name__ == "__main__":
    dist.init_process_group()
    sys.stdout.write(f"rank {dist.get_rank()} gradient {gloo_gradients('FULL_SHARD')}\n")
    end_process_group()
