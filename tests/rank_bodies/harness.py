"""What tests/test_ranks.py runs: ranks that work, raise, die and hang."""

from __future__ import annotations

import os
import sys
import time
import warnings

import torch
import torch.distributed as dist


def sum_of_ranks(start: int) -> dict[str, object]:
    total = torch.tensor([float(start + dist.get_rank())])
    dist.all_reduce(total)
    env = {k: os.environ[k] for k in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")}
    return {
        "total": total,
        "rank": dist.get_rank(),
        "world_size": dist.get_world_size(),
        "threads": torch.get_num_threads(),
        "env": env,
    }


def times_two(value: torch.Tensor) -> torch.Tensor:
    return value * 2


def warn() -> str:
    warnings.warn("old", FutureWarning, stacklevel=1)
    return "went on"


def raise_on(rank: int) -> None:
    sys.stderr.write("said before the failure\n")
    if dist.get_rank() == rank:
        raise ValueError(f"rank {rank} is broken")
    dist.barrier()


def raise_everywhere() -> None:
    dist.barrier()
    time.sleep(1)  # the first to leave closes its sockets: let the other leave the barrier before
    raise KeyError(f"from {dist.get_rank()}")


def exit_on(rank: int, code: int) -> None:
    if dist.get_rank() == rank:
        os._exit(code)
    dist.barrier()


def hang_on(rank: int) -> None:
    if dist.get_rank() == rank:
        time.sleep(600)


def preloaded() -> bool:
    """Tell whether this module came from the server: a fresh import would name another process."""
    return os.getpid() != IMPORTED_BY


IMPORTED_BY = os.getpid()
