"""Progress: a line now and then where there is no terminal, a bar where there is one."""

from __future__ import annotations

import io
import time
from typing import TYPE_CHECKING

from rich.console import Console

from fsdp_migrate.checkpoint_convert import ProgressEvent
from fsdp_migrate.cli.render import progress


if TYPE_CHECKING:
    import pytest


def shown(events: list[ProgressEvent], *, terminal: bool) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100)
    with progress.show_progress(console, "Converting") as report:
        for event in events:
            report(event)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


EVENTS = [ProgressEvent(done, 4_000_000, "writing") for done in (0, 1_000_000, 4_000_000)]


def test_short_work_says_nothing_in_a_file() -> None:
    assert shown(EVENTS, terminal=False) == ""


def test_long_work_says_how_far_it_is_and_how_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter((0.0, 1.0, 20.0, 40.0))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    assert shown(EVENTS, terminal=False).splitlines() == [
        "writing: 1.0 MB of 4.0 MB, 50.0 kB/s, 60 s left",
        "writing: 4.0 MB of 4.0 MB, 100.0 kB/s, 0 s left",
    ]


def test_a_terminal_gets_a_bar() -> None:
    text = shown(EVENTS, terminal=True)
    assert "writing" in text
    assert "4.0/4.0 MB" in text
