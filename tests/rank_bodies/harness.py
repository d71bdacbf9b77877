"""What tests/test_ranks.py runs: ranks that work, raise, die and hang."""

from __future__ import annotations

import ctypes
import os
import sys
import time
import warnings
from pathlib import Path

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


def hang_on(rank: int, lock_held: bool) -> None:
    if dist.get_rank() == rank:
        if lock_held:
            hang_in_c()
        time.sleep(600)


def hang_in_c() -> None:
    """Hang with Python's lock held, so that no signal handler of Python runs and no other thread."""
    lock = ctypes.create_string_buffer(64)
    for _ in range(2):
        ctypes.PyDLL(None).pthread_mutex_lock(lock)


def tell_and_hang(folder: str) -> None:
    (Path(folder) / str(os.getpid())).touch()
    hang_in_c()


def preloaded() -> bool:
    """Tell whether this module came from the server: a fresh import would name another process."""
    return os.getpid() != IMPORTED_BY


def bodies_of_one_test() -> set[str]:
    """Return the modules beside tests that a rank has without asking for them: the server's."""
    return {name for name in sys.modules if name.endswith("_bodies")}


IMPORTED_BY = os.getpid()
