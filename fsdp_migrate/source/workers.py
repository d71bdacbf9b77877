"""Work on many files at once, by processes of its own, one for each core."""

from __future__ import annotations

import contextlib
import functools
import gc
import multiprocessing
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.synchronize import Event
    from pathlib import Path
    from typing import TypeVar

    T = TypeVar("T")


# Below this, starting processes takes longer than they save.
_BYTES_FOR_PROCESSES = 400_000
# What a terminal, `timeout` or a scheduler sends to all processes of a command at once.
_OF_GROUPS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))

_stops: list[Event] = []
"""In a worker: what is set once its results are wanted no more."""


def on_all_cores(
    work: Callable[[Path], T], files: Sequence[Path], num_processes: int | None = None
) -> Iterator[T]:
    """Yield what ``work`` makes of each file, in order; by several processes where that pays.

    Whatever ends the caller ends them: an interrupt too, which each finishes its file for.
    """
    count = min(num_processes or _cores(), max(1, len(files)))
    if count == 1 or (num_processes is None and _size(files) < _BYTES_FOR_PROCESSES):
        yield from map(work, files)
        return
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    with ProcessPoolExecutor(count, mp_context=context, initializer=_begin, initargs=(stop,)) as pool:
        try:
            with _signals_held():
                results = pool.map(
                    functools.partial(_unless_stopped, work),
                    files,
                    chunksize=max(1, len(files) // (count * 8)),
                )
            yield from results
        except BaseException:
            # Files that were handed out are passed over. A pool whose processes are killed may wait for ever.
            stop.set()
            raise


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Hold signals back for a while; a process that is started meanwhile does until it lets them in."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _OF_GROUPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(stop: Event) -> None:
    """Make a process ready for work: what ends a whole group of processes is left to the first one."""
    _stops.append(stop)
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)
    for number in _OF_GROUPS:
        signal.signal(number, signal.SIG_IGN)  # forgets those that came before
        if number == signal.SIGTERM:
            signal.signal(number, signal.SIG_DFL)  # by which a pool ends its processes
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _OF_GROUPS)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # A fifth of the time goes to garbage collections, which go through whole syntax trees. At these numbers a
    # process takes a tenth of memory more; without any, three times as much.
    gc.freeze()
    gc.set_threshold(500_000, 100, 100)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _unless_stopped(work: Callable[[Path], T], file: Path) -> T:
    if any(each.is_set() for each in _stops):
        msg = "Nobody waits for this any more."
        raise RuntimeError(msg)
    return work(file)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _size(files: Sequence[Path]) -> int:
    return sum(map(_size_of, files))


def _size_of(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0
