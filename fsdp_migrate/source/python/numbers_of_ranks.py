"""Tests of how many ranks there are: ``devices > 1``, ``fabric.world_size == 1``."""

from __future__ import annotations

import ast
import re
from typing import Final

from fsdp_migrate.source.python.known_parts import known_parts


_NUMBER: Final = re.compile(r"(?:^|[._])(?:world_size|num_devices|devices)(?:\*(?:\w+\.)*\w*nodes)?$")
_MANY: Final[dict[tuple[type[ast.cmpop], int], bool]] = {
    (ast.Gt, 1): True,
    (ast.GtE, 2): True,
    (ast.NotEq, 1): True,
    (ast.Eq, 1): False,
    (ast.Lt, 2): False,
    (ast.LtE, 1): False,
}
"""By the comparison with a number whether it is one of several ranks."""


def says_several(test: ast.expr, *, truth: bool) -> bool | None:
    """Return whether there are several ranks where a test has come out as ``truth``; None where it is open.

    Example:
        >>> test = ast.parse("fabric.world_size > 1 and ready", mode="eval").body
        >>> says_several(test, truth=True), says_several(test, truth=False)
        (True, None)
    """
    found = (_compares(part, truth=said) for part, said in known_parts(test, truth=truth))
    return next((each for each in found if each is not None), None)


def _compares(test: ast.expr, *, truth: bool) -> bool | None:
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return None
    number = test.comparators[0]
    value = number.value if isinstance(number, ast.Constant) else None
    is_many = _MANY.get((type(test.ops[0]), value)) if isinstance(value, int) else None
    if is_many is None or _NUMBER.search(ast.unparse(test.left).replace(" ", "")) is None:
        return None
    return is_many is truth
