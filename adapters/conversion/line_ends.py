"""Line ends of a shell script: it is read with line feeds alone, and written with those that it has.

A backslash before a carriage return and a line feed stands for a continuation, as whoever wrote it means it.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Iterable

    from fsdp_migrate.adapters.conversion.variables import Piece


def with_line_feeds(text: str) -> str:
    r"""Return a text as it is read: with a line feed at the end of each line.

    Example:
        >>> with_line_feeds("a \\\r\n  --b\n")
        'a \\\n  --b\n'
    """
    return text.replace("\r\n", "\n")


def with_pieces(source: str, pieces: Iterable[Piece]) -> str:
    r"""Carry out changes of the text that is read in the one that stands there, whose line ends stay.

    Of two changes at one place what is removed goes first.

    Example:
        >>> from fsdp_migrate.adapters.conversion.variables import Piece
        >>> with_pieces("a\r\nbc\r\n", [Piece(2, 3, "B")])
        'a\r\nBc\r\n'
    """
    # Where the line feeds that have a carriage return before them stand in the text that is read.
    ends = [match.start() - index for index, match in enumerate(re.finditer("\r\n", source))]
    result = source
    for start, end, new in sorted(pieces, key=lambda piece: (piece.start, piece.end), reverse=True):
        first, last = (at + bisect_left(ends, at) for at in (start, end))
        # Whole lines that are put there end as those did.
        lines = new.replace("\n", "\r\n") if "\r\n" in source[first:last] else new
        result = result[:first] + lines + result[last:]
    return result
