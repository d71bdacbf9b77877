"""Notebooks: the code of their cells, without what only IPython understands."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from fsdp_migrate.errors import SourceError
from fsdp_migrate.source.python.parsing import parse_module


_MAGIC = re.compile(r"^([ \t]*)([%!?].*|\w+\s*=\s*[%!].*|.*\?)$")


def code_cells(text: str, path: str) -> list[tuple[int, str]]:
    r"""Return the number, from 1, and the code of each code cell of a notebook.

    Lines for IPython (``%time``, ``!pip``) become ``pass``, and what they go on with empty lines, so that
    lines keep their numbers; a cell of another language (``%%bash``) is left out.

    Raises:
        SourceError: The text is no notebook.

    Example:
        >>> code_cells('{"cells": [{"cell_type": "code", "source": ["!ls\\n", "x = 1"]}]}', "a.ipynb")
        [(1, 'pass\nx = 1')]
    """
    try:
        cells = json.loads(text)["cells"]
        sources = [
            (place, "".join(cell["source"]))
            for place, cell in enumerate(cells, 1)
            if cell["cell_type"] == "code"
        ]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise SourceError(f"{path}: skipped, it is no notebook that can be read.", path=path) from None
    return [(place, _without_magic(code)) for place, code in sources if not _is_foreign(code)]


@dataclass(frozen=True)
class NotebookCode:
    """The Python of a notebook as one source, so that what one cell imports is known in the next."""

    text: str
    starts: tuple[tuple[int, int], ...]
    """The line at which each cell begins, and its number."""
    broken: tuple[int, ...]
    """The cells that are no Python; their lines are empty, so that all others are counted from the start."""

    def place(self, line: int) -> tuple[int, int]:
        """Return the cell in which a line stands, and its line there."""
        start, number = max(each for each in self.starts if each[0] <= line)
        return number, line - start + 1


def code_of(text: str, path: str) -> NotebookCode:
    r"""Return the Python of a notebook.

    Raises:
        SourceError: The text is no notebook.

    Example:
        >>> code_of('{"cells": [{"cell_type": "code", "source": ["x = 1"]}]}', "a.ipynb").text
        'x = 1\n'
    """
    cells = code_cells(text, path)
    starts, line = [], 1
    for number, code in cells:
        starts.append((line, number))
        line += code.count("\n") + 1
    broken = [number for number, code in cells if not is_python(code)]
    kept = ("\n" * code.count("\n") if number in broken else code for number, code in cells)
    return NotebookCode("\n".join(kept) + "\n", tuple(starts), tuple(broken))


def is_python(code: str) -> bool:
    """Tell whether a cell can be parsed by itself.

    Example:
        >>> is_python("x = 1"), is_python("for this")
        (True, False)
    """
    try:
        parse_module(code, "cell")
    except SourceError:
        return False
    return True


def _is_foreign(code: str) -> bool:
    first = code.lstrip().partition("\n")[0]
    return first.startswith("%%") and not re.match(r"%%(time|timeit|capture)\b", first)


def _without_magic(code: str) -> str:
    lines, goes_on = [], False
    for line in code.split("\n"):
        is_magic = not goes_on and _MAGIC.match(line) is not None
        lines.append("" if goes_on else _MAGIC.sub(r"\1pass", line))
        goes_on = (goes_on or is_magic) and line.endswith("\\")
    return "\n".join(lines)
