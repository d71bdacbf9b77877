"""Notebooks: the code of their cells, without what only IPython understands."""

from __future__ import annotations

import json
import re

from fsdp_migrate.errors import SourceError
from fsdp_migrate.source.python.parsing import parse_module


_MAGIC = re.compile(r"^([ \t]*)([%!?].*|\w+\s*=\s*[%!].*|.*\?)$")


def code_cells(text: str, path: str) -> list[tuple[int, str]]:
    r"""Return the number, from 1, and the code of each code cell of a notebook.

    Lines for IPython (``%time``, ``!pip``) become ``pass``, so that lines keep their numbers; a cell of
    another language (``%%bash``) is left out.

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
    return "\n".join(_MAGIC.sub(r"\1pass", line) for line in code.split("\n"))
