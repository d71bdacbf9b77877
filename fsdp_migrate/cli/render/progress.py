"""Progress of long work: a bar on a terminal, and a line now and then elsewhere."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from fsdp_migrate.cli.render.screen import console, escape


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from rich.console import Console

    from fsdp_migrate.checkpoint_convert import ProgressEvent


SECONDS_BETWEEN_LINES = 10.0


@contextlib.contextmanager
def show_progress(console: Console, verb: str) -> Iterator[Callable[[ProgressEvent], None]]:
    """Yield what the library is to call as it gets on; what it says is shown on ``console``."""
    if not console.is_terminal:
        yield _Lines(console, verb)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(verb, total=None)

        def update(event: ProgressEvent) -> None:
            bar.update(
                task,
                description=event.message or verb,
                completed=event.done_bytes,
                total=event.total_bytes or None,
            )

        yield update


class _Lines:
    """Prints how far the work is every few seconds, beginning after the first few."""

    def __init__(self, console: Console, verb: str) -> None:
        self._console = console
        self._verb = verb
        self._start = self._last = time.monotonic()

    def __call__(self, event: ProgressEvent) -> None:
        now = time.monotonic()
        if now - self._last < SECONDS_BETWEEN_LINES:
            return
        self._last = now
        rate = event.done_bytes / (now - self._start)
        left = f", {(event.total_bytes - event.done_bytes) / rate:.0f} s left" if rate else ""
        self._console.print(
            f"{event.message or self._verb}: {decimal(event.done_bytes)} of {decimal(event.total_bytes)}, "
            f"{decimal(int(rate))}/s{left}"
        )


def say(text: str) -> None:
    """Say one line meanwhile, on stderr."""
    console(aside=True).print(escape(text))


def watch_progress(verb: str) -> AbstractContextManager[Callable[[ProgressEvent], None]]:
    """Return a context that gives what the library is to call as it gets on."""
    return show_progress(console(aside=True), verb)
