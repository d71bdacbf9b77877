"""What tests/test_ranks.py runs: ranks that work, raise, die and hang."""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor


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


def collectives() -> dict[str, list[float]]:
    """Return what collectives of every kind give this rank, of numbers that differ by rank."""
    rank = dist.get_rank()
    own = torch.arange(4.0) + 10 * rank
    summed, mean, sent = own.clone(), own.clone(), own.clone()
    dist.all_reduce(summed)
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    dist.broadcast(sent, src=1)
    every = [torch.empty(4) for _ in range(2)]
    dist.all_gather(every, own)
    part, parts = torch.empty(2), [own.clone(), own + 1] if rank == 0 else None
    dist.reduce_scatter(part, list(own.split(2)), op=dist.ReduceOp.AVG)
    scattered = torch.empty(4)
    dist.scatter(scattered, parts, src=0)
    ranks: list[Any] = [None, None]
    dist.all_gather_object(ranks, rank)
    whole = distribute_tensor(torch.arange(6.0).view(3, 2), init_device_mesh("cpu", (2,)), [Shard(0)])
    found = {"sum": summed, "mean": mean, "broadcast": sent, "all-gather": torch.cat(every)}
    found |= {"reduce-scatter": part, "scatter": scattered, "DTensor": whole.full_tensor().flatten()}
    return {**{name: tensor.tolist() for name, tensor in found.items()}, "objects": ranks}


def leaves_a_folder() -> str:
    """Make a temporary folder, and leave it, as a rank does that is killed."""
    return tempfile.mkdtemp()
