"""Do independent pieces of work in a few threads, with progress and interrupts in the calling one."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from fsdp_migrate.checkpoint_convert.storage.progress import ProgressEvent


if TYPE_CHECKING:
    from fsdp_migrate.checkpoint_convert.storage.progress import Progress

T = TypeVar("T")
Advance = Callable[[int], None]
"""Reports bytes as done; raises where the work is to stop."""

_POLL: Final = 0.1


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
    crew = _Crew(tasks, work)
    workers = [threading.Thread(target=crew.loop, daemon=True) for _ in range(threads)]
    try:
        for worker in workers:
            worker.start()
        crew.follow(threads, total_bytes, message, progress, check or _nothing)
    finally:
        crew.stop.set()
        for worker in workers:
            if worker.ident is not None:
                worker.join()


class _StoppedError(Exception):
    """Raised inside a worker when the work has been given up; never leaves this module."""


class _Crew(Generic[T]):
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
        running: int,
        total_bytes: int,
        message: str,
        progress: Progress | None,
        check: Callable[[], None],
    ) -> None:
        """Report progress until all workers have ended, or one of them failed."""
        report = progress or _ignore
        done = 0
        report(ProgressEvent(done, total_bytes, message))
        while running:
            check()
            try:
                # A timeout, because without one a signal would wait for the next event.
                event = self._events.get(timeout=_POLL)
            except queue.Empty:
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
