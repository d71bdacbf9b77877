"""Do independent pieces of work in a few threads, with progress and interrupts in the calling one."""

from __future__ import annotations

import _thread
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from fsdp_migrate.checkpoint_convert.storage.progress import ProgressEvent


if TYPE_CHECKING:
    from fsdp_migrate.checkpoint_convert.storage.progress import Progress

T = TypeVar("T")
Advance = Callable[[int], None]
"""Reports bytes as done; raises where the work is to stop."""

_POLL: Final = 0.1
# A thread for which there is no memory can die before it does anything, and nobody is told.
START_SECONDS = 60.0


def run_workers(
    tasks: Iterable[T],
    work: Callable[[T, Advance], None],
    *,
    threads: int,
    total_bytes: int,
    message: str,
    progress: Progress | None,
    check: Callable[[], None] | None = None,
) -> None:
    """Call ``work(task, advance)`` for every task, in ``threads`` threads.

    The first error stops all workers at their next ``advance``, and is raised once they have ended. An
    interrupt of the calling thread and an exception of ``progress`` count as errors, and so does what
    ``check`` raises, which is called in the calling thread now and then.
    """
    shared = _SharedWork(tasks, work)
    workers = [_Worker(shared.loop) for _ in range(threads)]
    try:
        for worker in workers:
            worker.start()
        shared.follow(workers, total_bytes, message, progress, check or _nothing)
    finally:
        shared.stop.set()
        for worker in workers:
            worker.join()


class _StoppedError(Exception):
    """Raised inside a worker when the work has been given up; never leaves this module."""


class _Worker:
    """A thread. ``threading.Thread.start`` would wait for ever for one that dies for want of memory."""

    def __init__(self, loop: Callable[[], None]) -> None:
        self._loop = loop
        self._started = threading.Event()
        self._ended = threading.Event()
        self._since: float | None = None

    def start(self) -> None:
        """Start it, without waiting until it has."""
        self._since = time.monotonic()
        _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        try:
            self._started.set()
            self._loop()
        finally:
            self._ended.set()

    @property
    def is_lost(self) -> bool:
        """Tell whether it will do nothing any more: it has ended, or never begun."""
        is_late = self._since is not None and time.monotonic() - self._since > START_SECONDS
        return self._ended.is_set() or (is_late and not self._started.is_set())

    def join(self) -> None:
        """Wait until it has ended, if it has begun."""
        while self._started.is_set() and not self._ended.wait(_POLL):
            pass


class _SharedWork(Generic[T]):
    def __init__(self, tasks: Iterable[T], work: Callable[[T, Advance], None]) -> None:
        self.stop = threading.Event()
        self._work = work
        self._pending: queue.SimpleQueue[T] = queue.SimpleQueue()
        self._events: queue.SimpleQueue[int | BaseException | None] = queue.SimpleQueue()
        for task in tasks:
            self._pending.put(task)

    def loop(self) -> None:
        """Work until nothing is left; runs in the workers."""
        try:
            while not self.stop.is_set():
                self._work(self._pending.get_nowait(), self._advance)
        except (queue.Empty, _StoppedError):
            pass
        except BaseException as error:  # carried to the calling thread
            self._events.put(error)
        self._events.put(None)

    def follow(
        self,
        workers: Sequence[_Worker],
        total_bytes: int,
        message: str,
        progress: Progress | None,
        check: Callable[[], None],
    ) -> None:
        """Report progress until all workers have ended, or one of them failed."""
        report = progress or _ignore
        done, running = 0, len(workers)
        report(ProgressEvent(done, total_bytes, message))
        while running:
            check()
            try:
                # A timeout, because without one a signal would wait for the next event.
                event = self._events.get(timeout=_POLL)
            except queue.Empty:
                # Each says so when it ends, if there is memory left to say it with.
                if all(worker.is_lost for worker in workers) and self._events.empty():
                    raise MemoryError("a thread ended without an error") from None
                continue
            if event is None:
                running -= 1
            elif isinstance(event, BaseException):
                raise event
            else:
                done += event
                report(ProgressEvent(done, total_bytes, message))

    def _advance(self, nbytes: int) -> None:
        if self.stop.is_set():
            raise _StoppedError
        self._events.put(nbytes)


def _nothing() -> None:
    pass


def _ignore(event: ProgressEvent) -> None:
    del event
