"""What was typed, for reports that say how they are repeated."""

from __future__ import annotations

import shlex
from contextvars import ContextVar


TYPED: ContextVar[tuple[str, ...]] = ContextVar("typed", default=())
"""The words of the command line, without the program."""


def command_line() -> str:
    """Return the command that runs, as it is typed in a shell."""
    return shlex.join(("fsdp-migrate", *TYPED.get()))
