"""Which commands of a script run only under a condition, and where flags go that every run needs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fsdp_migrate.adapters.conversion.flags import end_of, read_flags
from fsdp_migrate.adapters.conversion.shell import launch_of, words_of


if TYPE_CHECKING:
    from collections.abc import Iterable

    from fsdp_migrate.adapters.conversion.variables import Expanded, Piece


_OPENS = re.compile(r"(?:(?:then|else|do|\{)\s+)*(?:if|case|for|while|until|select)\b")
_CASE = re.compile(r"(?:(?:then|else|do|\{)\s+)*case\b")
_NEAR = 80
_TURNS = re.compile(r"(?:elif|else)\b")
_CLOSES = re.compile(r"(?:fi|esac|done)\b")


def branches_of(text: str, commands: Iterable[tuple[int, int]]) -> dict[int, tuple[int, ...]]:
    r"""Return for the end of each command the branches around it, by the places where they begin.

    Example:
        >>> text = "a\nif b; then\n  c\nfi\nd && e\n"
        >>> list(branches_of(text, [(0, 1), (2, 6), (8, 16), (17, 19), (20, 21), (25, 26)]).values())
        [(), (), (2,), (2,), (), (25,)]
    """
    found: dict[int, tuple[int, ...]] = {}
    inside: tuple[int, ...] = ()
    for start, end in commands:
        command = text[start:end]
        if _TURNS.match(command) and inside:
            inside = (*inside[:-1], start)
        outside = inside
        if _OPENS.match(command):
            inside = (*inside, start)
        only_then = text[max(start - _NEAR, 0) : start].rstrip().endswith(("&&", "||"))
        # What follows the first pattern of `case` is taken for one command with it.
        around = inside if _CASE.match(command) else outside
        found[end] = (*around, start) if only_then else around
        if _CLOSES.match(command):
            inside = inside[:-1]
    return found


def is_sure(given: tuple[int, ...], within: tuple[int, ...]) -> bool:
    """Tell whether what stands in some branches has run wherever a command in others does.

    Example:
        >>> is_sure((), (2,)), is_sure((2,), ())
        (True, False)
    """
    return within[: len(given)] == given


def sure_place(command: Expanded, piece: Piece) -> Piece:
    """Return where to add what every run needs: behind the last FSDP flag that every run has, if any."""
    if piece.start != piece.end or not piece.new or not _is_unsure(command, piece.start - 1):
        return piece
    script_at = launch_of(words_of(command.text)).script_at
    border = script_at if script_at is not None else len(command.text)
    sure = [
        end_of(flag, command.text)
        for flag in read_flags(command.text)
        if flag.name.startswith(("fsdp", "use_fsdp"))
        and (flag.start < border) is (piece.start <= border)
        and flag.start < piece.start
        and not _is_unsure(command, flag.start)
    ]
    return piece._replace(start=max(sure), end=max(sure)) if sure else piece


def _is_unsure(command: Expanded, at: int) -> bool:
    return any(start <= at < end for start, end in command.unsure)
