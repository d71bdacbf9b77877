"""What both forms of a report say in the same words."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fsdp_migrate.explanations import EXPLANATIONS, Explanation
from fsdp_migrate.report.model import codes_in


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.report.model import Report, Tone


SIGNS: dict[Tone, str] = {"good": "✓", "warning": "!", "bad": "✗", "neutral": "•"}
"""What stands before a verdict, so that its colour says nothing that is not there in another way."""

MEANINGS = "What the codes mean"
REPEATED = "How it was made"
_CODE = re.compile(r"`([^`\n]+)`")


def pieces(text: str) -> Iterator[tuple[bool, str]]:
    """Yield the parts of a text, each with whether it is code: what stands between backticks.

    Example:
        >>> list(pieces("set `a.b` to 1"))
        [(False, 'set '), (True, 'a.b'), (False, ' to 1')]
    """
    for number, part in enumerate(_CODE.split(text)):
        if part:
            yield number % 2 == 1, part


def explained(report: Report) -> list[Explanation]:
    """Return the meaning of the codes that a report names."""
    return [EXPLANATIONS[code] for code in codes_in(report) if code in EXPLANATIONS]


def left_out(more: int) -> str:
    """Say how many rows are not shown; nothing where all are."""
    return f"and {more:,} more, which `--json` writes" if more else ""
