"""Where people read: reports on stdout, so that they can be piped; what is said meanwhile on stderr."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from rich import box, markup
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from fsdp_migrate.cli.render.paragraphs import set_lines
from fsdp_migrate.visible import printable


if TYPE_CHECKING:
    from collections.abc import Iterable


WIDTH_OF_FILES = 120
_UNBOUNDED = 10_000


class Screen(Console):
    """A console that breaks no word: where one is longer than a line, so are the lines."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print, as rich does."""
        width = self.width
        if not options.get("soft_wrap"):
            self.width = max(width, *map(self._least, objects), 0)
        try:
            super().print(*objects, **options)
        finally:
            self.width = width

    def _measure(self, each: Any) -> Measurement:
        renderable = self.render_str(each) if isinstance(each, str) else each
        return Measurement.get(self, self.options.update(width=_UNBOUNDED), renderable)

    def _least(self, each: Any) -> int:
        """Return how wide the screen must be, so that no word breaks."""
        return self._divide(each) if isinstance(each, Table) else self._measure(each).minimum

    def _divide(self, table: Table) -> int:
        """Give each column of a table at least its longest word; return how wide the table is at least."""
        words = [[self._measure(cell) for cell in (each.header, *each.cells)] for each in table.columns]
        least = [max(measured.minimum for measured in column) for column in words]
        most = [max(measured.maximum for measured in column) for column in words]
        between = self._measure(table).maximum - sum(most)
        left = self.width - between - sum(least)
        for column, narrow, wide in zip(table.columns, least, most, strict=True):
            more = max(0, min(left, wide - narrow))
            column.width = narrow + more
            left -= more
        return between + sum(least)


def escape(text: str) -> str:
    """Return a text as it is to be shown: neither markup nor control characters in it count."""
    return markup.escape(printable(text))


def console(*, aside: bool = False) -> Screen:
    """Return a console; where it is no terminal, wide enough that tables stay whole.

    Args:
        aside: On stderr: progress, and reports where stdout holds what the command has made.
    """
    stream = sys.stderr if aside else sys.stdout
    fixed = None if stream.isatty() or "COLUMNS" in os.environ else WIDTH_OF_FILES
    # No `emoji`, as which rich shows the line of `train.py:100:7`.
    return Screen(stderr=aside, highlight=False, emoji=False, width=fixed)


def print_text(out: Console, text: str, *, indent: str = "", first: str | None = None) -> None:
    """Print a text of anybody's: in lines that fit, no word broken."""
    for line in set_lines(printable(text), width=out.width, indent=indent, first=first):
        out.print(line, markup=False, soft_wrap=True)


def make_table(*columns: str, right: Iterable[str] = ()) -> Table:
    """Return an empty table; the columns in ``right`` are aligned to the right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left")
    return table
