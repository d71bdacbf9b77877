"""Which parts of a test are known to be true, or false, once the test has come out as one of both."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Iterator


def known_parts(test: ast.expr, *, truth: bool) -> Iterator[tuple[ast.expr, bool]]:
    """Yield what is known where a test has come out as ``truth``, part by part.

    Of ``a and b`` that is true both are, of ``a or b`` that is false neither is. The others stay whole.

    Example:
        >>> test = ast.parse("not (a or b) and (c or d)", mode="eval").body
        >>> [(ast.unparse(part), said) for part, said in known_parts(test, truth=True)]
        [('a', False), ('b', False), ('c or d', True)]
    """
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from known_parts(test.operand, truth=not truth)
    elif isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) is truth:
        for part in test.values:
            yield from known_parts(part, truth=truth)
    else:
        yield test, truth
