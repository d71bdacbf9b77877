"""Do independent pieces of work in a few threads, with progress and interrupts in the calling one."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from fsdp_migrate.checkpoint_convert.progress import Progress, ProgressEvent


T = TypeVar("T")
Advance = Callable[[int], None]
"""Reports bytes as done; raises where the work is to stop."""

_POLL: Final = 0.1


class StoppedError(Exception):
    """Raised inside a worker when the work has been given up; never leaves this module."""


def run_workers(
    tasks: Iterable[T],
    work: Callable[[T, Advance], None],
    *,
    threads: int,
    total_bytes: int,
    message: str,
    progress: Progress | None,
) -> None:
    """Call ``work(task, advance)`` for every task, in ``threads`` threads.

    The first error, also an interrupt of the calling thread or an exception of ``progress``, stops all workers
    at their next ``advance``; it is raised once they have ended.
    """
    pending: queue.SimpleQueue[T] = queue.SimpleQueue()
    for task in tasks:
        pending.put(task)
    events: queue.SimpleQueue[int | BaseException | None] = queue.SimpleQueue()
    stop = threading.Event()

    def advance(nbytes: int) -> None:
        if stop.is_set():
            raise StoppedError
        events.put(nbytes)

    def loop() -> None:
        try:
            while not stop.is_set():
                try:
                    task = pending.get_nowait()
                except queue.Empty:
                    break
                work(task, advance)
        except StoppedError:
            pass
        except BaseException as error:  # noqa: BLE001  # carried to the calling thread
            events.put(error)
        events.put(None)

    workers = [threading.Thread(target=loop, daemon=True) for _ in range(threads)]
    try:
        for worker in workers:
            worker.start()
        _follow(events, len(workers), total_bytes, message, progress)
    finally:
        stop.set()
        for worker in workers:
            if worker.ident is not None:
                worker.join()


def _follow(
    events: queue.SimpleQueue[int | BaseException | None],
    running: int,
    total_bytes: int,
    message: str,
    progress: Progress | None,
) -> None:
    done = 0
    if progress is not None:
        progress(ProgressEvent(0, total_bytes, message))
    while running:
        try:
            # A timeout, because without one a signal would wait for the next event.
            event = events.get(timeout=_POLL)
        except queue.Empty:
            continue
        if event is None:
            running -= 1
        elif isinstance(event, BaseException):
            raise event
        else:
            done += event
            if progress is not None:
                progress(ProgressEvent(done, total_bytes, message))
