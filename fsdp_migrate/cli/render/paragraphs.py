"""Text in lines: words are never broken, for names, keys and paths are there to be copied."""

from __future__ import annotations

import shutil
import textwrap
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


NARROWEST, WIDEST = 40, 100


def screen_width() -> int:
    """Return how wide a text is set: as wide as the terminal, up to what is pleasant to read."""
    return max(NARROWEST, min(shutil.get_terminal_size().columns, WIDEST))


def set_lines(text: str, *, width: int, indent: str = "", first: str | None = None) -> list[str]:
    r"""Return a text in lines of at most ``width`` characters; a longer word has a line of its own.

    Line ends in the text stay.

    Args:
        text: The text.
        width: How long a line may be.
        indent: What each line begins with.
        first: What the first line begins with, if it is something else.

    Example:
        >>> set_lines("the key is model.layers.0.weight here", width=16, indent="  ")
        ['  the key is', '  model.layers.0.weight', '  here']
    """
    lines: list[str] = []
    for paragraph in text.splitlines() or [""]:
        start = indent if lines or first is None else first
        lines += textwrap.wrap(
            paragraph,
            width,
            initial_indent=start,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [start.rstrip()]
    return lines


def set_definitions(rows: Iterable[tuple[str, str]], *, width: int, indent: str = "  ") -> Iterator[str]:
    """Yield words and what they mean, side by side; a long word stands on a line of its own.

    Example:
        >>> list(set_definitions([("a", "first"), ("much-too-long", "second")], width=24, indent=""))
        ['a       first', 'much-too-long', '        second']
    """
    listed = list(rows)
    widest = max(8, width // 3)
    left = max((len(word) for word, _ in listed if len(word) < widest - 2), default=widest - 2) + 2
    left = max(left, 8) if any(len(word) + 2 > left for word, _ in listed) else left
    margin = indent + " " * left
    for word, meaning in listed:
        first = f"{indent}{word}".ljust(len(margin))
        if len(word) + 2 > left:
            yield f"{indent}{word}"
            first = margin
        yield from set_lines(meaning, width=width, indent=margin, first=first)
