"""How a process group ends without a hang and without an abort, on every torch.

A part of :mod:`fsdp_migrate.torch_compat`, and under its rule: no other file asks which torch this is or
touches its privates. What is read here was checked on 2.6, 2.7 and 2.13.
"""
# torch has no public list of the groups that there are.

from __future__ import annotations

import ctypes
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist


_JOINS_WITH_THE_LOCK = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 8)
"""Up to torch 2.7 a gloo group joins its threads while it holds Python's lock (pytorch#154976)."""

_THREADS = Path("/proc/self/task")
_PATIENCE = 5.0  # seconds
_ROUNDS_OF_A_LOOP = 5
_BLIND_WAIT = 0.2  # seconds, where the system does not tell what threads do


def end_process_group() -> None:
    """End ``torch.distributed`` in this process: the last call of every rank.

    Takes the place of ``torch.distributed.destroy_process_group()``, which has two faults on gloo. Up to
    torch 2.7 it can wait for ever: it joins gloo's threads while it holds Python's lock, and a thread that
    has just finished a collective needs that lock to drop a tensor (mended in 2.8, pytorch#154976). And on
    every torch a thread that drops a tensor while Python ends aborts the process, after all work is done
    (pytorch#179291). So the ranks first wait for each other, unless this one leaves with an exception; then
    this process waits, without the lock, until its other threads rest; then all groups end.

    Takes some 20 to 60 ms. Where other threads do not rest within 5 s, the groups end all the same; up to
    torch 2.7 their threads and sockets then stay until the process ends. Without a process group nothing
    happens. Groups without gloo end as torch ends them. Models and optimizers are left alone.

    Raises:
        RuntimeError: Another rank is gone, so that this one waits in vain (torch's own error).

    Example:
        >>> import torch.distributed as dist
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> end_process_group()
        >>> dist.is_initialized()
        False
    """
    if not dist.is_initialized():
        return
    # In a `finally` after an error the others may never come, and the error is what must be seen.
    if "gloo" in dist.get_backend_config() and sys.exc_info()[0] is None:
        dist.barrier()  # who leaves early closes sockets that another's last collective may need
    # Beside NCCL's default group there may be some of gloo, for what lies on the CPU.
    groups = list(dist.distributed_c10d._world.pg_map)
    if any("gloo" in dist.get_backend_config(group) for group in groups):
        at_rest = wait_until_threads_rest()
        if _JOINS_WITH_THE_LOCK and not at_rest:
            for group in groups:  # kept until the process is gone: no thread of theirs is ever joined
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
    dist.destroy_process_group()


def wait_until_threads_rest() -> bool:
    """Wait until each other thread of this process has been seen at rest; return whether it came to that.

    At rest is a thread that sleeps and has not been awake between two looks, so that Python's lock, which
    ``time.sleep`` gives away, is not what it waits for. Nothing new is given to gloo's threads meanwhile, so
    that one such pair is enough. Its event loops wake up every 10 ms, and count as resting after some rounds.
    """
    if not _THREADS.is_dir():
        time.sleep(_BLIND_WAIT)
        return False
    deadline = time.monotonic() + _PATIENCE
    of_python = {str(thread.native_id) for thread in threading.enumerate()}
    first = before = _look_at_threads()
    resting: set[str] = set()
    while time.monotonic() < deadline:
        # Longer than Python's switch interval: a thread that waits for the lock asks for it again within that
        # time, and so has been awake between two looks.
        time.sleep(0.001 + sys.getswitchinterval())
        now = _look_at_threads()
        first = now | first
        for thread, (sleeps, awakenings) in now.items():
            # A thread of Python that computes wakes up too, each time it gets the lock: it does not rest.
            loops = thread not in of_python and awakenings - first[thread][1] >= _ROUNDS_OF_A_LOOP
            if loops or (sleeps and before.get(thread) == (sleeps, awakenings)):
                resting.add(thread)
        if now.keys() <= resting:
            return True
        before = now
    return False


def _look_at_threads() -> dict[str, tuple[bool, int]]:
    """Return whether each other thread sleeps, and how often it has gone to sleep so far."""
    found = {}
    for task in _THREADS.iterdir():
        if task.name == str(threading.get_native_id()):
            continue
        try:
            status = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
        except (FileNotFoundError, ProcessLookupError):
            continue  # the thread has ended
        sleeps = status["State"].split()[0] not in "RD"
        found[task.name] = (sleeps, int(status["voluntary_ctxt_switches"]))
    return found


def group_of_this_rank_alone() -> dist.ProcessGroup:
    """Make a group of one for every rank, and return this rank's; a collective call of all ranks."""
    group, _ = dist.new_subgroups(group_size=1)  # type: ignore[no-untyped-call,unused-ignore]
    alone: dist.ProcessGroup = group
    return alone


def default_store() -> dist.Store:
    """Return the store by which the ranks found each other."""
    store: dist.Store = dist.distributed_c10d._get_default_store()
    return store
