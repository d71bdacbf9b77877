"""Places that are reached only for a parameter without dimensions: a sharded model has none.

FSDP1's parameters were flat, of one dimension, and both FSDPs refuse to shard a scalar.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.python.nodes import dotted, text_of


if TYPE_CHECKING:
    from collections.abc import Callable

    from fsdp_migrate.source.python.text import Source

    IsOne = Callable[[cst.BaseExpression], bool]


_DIMENSIONS: Final = frozenset({"dim", "ndim", "ndimension"})
_SHAPES: Final = frozenset({"shape", "size"})
_EMPTY: Final = frozenset({"()", "[]", "torch.Size()", "torch.Size(())", "torch.Size([])"})
_NONE: Final = {"== 0", "<= 0", "< 1"}
_ANY: Final = {"!= 0", "> 0", ">= 1"}


def is_for_none(source: Source, node: cst.CSTNode, is_one: IsOne) -> bool:
    """Tell whether a place is reached only for a parameter of a sharded model that has no dimensions.

    Args:
        source: The source.
        node: The place.
        is_one: Tells whether an expression is a parameter of a sharded model.
    """
    return any(_says_none(test, is_one, truth=truth) for test, truth in source.models.guards.facts(node))


def _says_none(test: cst.BaseExpression, is_one: IsOne, *, truth: bool) -> bool:
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return _says_none(test.expression, is_one, truth=not truth)
    if isinstance(test, cst.BooleanOperation):
        # Of `a and b` that is true both are; of `a or b` that is false neither is. Else one of them is.
        found = [_says_none(part, is_one, truth=truth) for part in (test.left, test.right)]
        return any(found) if isinstance(test.operator, cst.And) is truth else all(found)
    if not isinstance(test, cst.Comparison):
        return not truth and _asked(test, is_one) is not None
    if len(test.comparisons) != 1:
        return False
    asked, other = _asked(test.left, is_one), test.comparisons[0].comparator
    sign = type(test.comparisons[0].operator)
    if asked in _SHAPES:
        is_same = sign is (cst.Equal if truth else cst.NotEqual)
        return is_same and text_of(other) in _EMPTY
    said = f"{_SIGNS.get(sign, '?')} {text_of(other)}"
    return asked is not None and said in (_NONE if truth else _ANY)


def _asked(node: cst.BaseExpression, is_one: IsOne) -> str | None:
    """Return what a parameter is asked for, its dimensions or its shape: ``p.ndim``, ``len(p.shape)``."""
    if isinstance(node, cst.Call) and dotted(node.func) == "len" and len(node.args) == 1:
        return "ndim" if _asked(node.args[0].value, is_one) in _SHAPES else None
    if isinstance(node, cst.Call) and node.args:
        return None
    func = node.func if isinstance(node, cst.Call) else node
    is_its = isinstance(func, cst.Attribute) and func.attr.value in _DIMENSIONS | _SHAPES
    return func.attr.value if is_its and isinstance(func, cst.Attribute) and is_one(func.value) else None


_SIGNS: Final = {
    cst.Equal: "==",
    cst.NotEqual: "!=",
    cst.LessThan: "<",
    cst.LessThanEqual: "<=",
    cst.GreaterThan: ">",
    cst.GreaterThanEqual: ">=",
}
