"""How far a long piece of work is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProgressEvent:
    """``done_bytes`` of ``total_bytes``, and in a few words what is being done."""

    done_bytes: int
    total_bytes: int
    message: str


Progress = Callable[[ProgressEvent], None]
"""Takes events, in the thread that asked for the work. An exception in it ends the work."""
