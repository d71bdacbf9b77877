"""Tests of how many ranks there are: ``devices > 1``, ``fabric.world_size == 1``."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source.python.known_parts import known_parts


if TYPE_CHECKING:
    from collections.abc import Callable


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


def _is_named(node: ast.expr) -> bool:
    """Tell whether an expression has the name of a number of ranks."""
    return _NUMBER.search(ast.unparse(node).replace(" ", "")) is not None


def says_several(
    test: ast.expr, *, truth: bool, is_number: Callable[[ast.expr], bool] = _is_named
) -> bool | None:
    """Return whether there are several ranks where a test has come out as ``truth``; None where it is open.

    ``is_number``: tells whether an expression is the number of ranks.

    Example:
        >>> test = ast.parse("fabric.world_size > 1 and ready", mode="eval").body
        >>> says_several(test, truth=True), says_several(test, truth=False)
        (True, None)
    """
    found = (_compares(part, is_number, truth=said) for part, said in known_parts(test, truth=truth))
    return next((each for each in found if each is not None), None)


def _compares(test: ast.expr, is_number: Callable[[ast.expr], bool], *, truth: bool) -> bool | None:
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return None
    number = test.comparators[0]
    value = number.value if isinstance(number, ast.Constant) else None
    is_many = _MANY.get((type(test.ops[0]), value)) if isinstance(value, int) else None
    if is_many is None or not is_number(test.left):
        return None
    return is_many is truth
