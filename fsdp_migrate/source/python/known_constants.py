"""What tests come to by constants that are known of names."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple


_TEXTS: Final = frozenset({"endswith", "lower", "startswith", "strip", "upper"})
_COMPARED: Final[dict[type[ast.cmpop], Callable[[Any, Any], object]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda one, other: one in other,
    ast.NotIn: lambda one, other: one not in other,
}


class _UnknownError(Exception):
    """What an expression gives is not known before it runs."""


class Value(NamedTuple):
    """A constant that a parameter has."""

    value: object


Constants = Mapping[str, Value]
"""The names whose constants are known."""


def constant(node: ast.expr | None) -> Value | None:
    """Return the constant that an expression is, where it is one."""
    try:
        return None if node is None else Value(_value(node, {}))
    except (_UnknownError, TypeError):
        return None


def are_never(known: Constants, facts: Iterable[tuple[ast.expr, bool]]) -> bool:
    """Tell whether one of some tests does not come out as it is said to, by what is known of names.

    Example:
        >>> are_never({"n": Value(0)}, [(ast.parse("n == 1", mode="eval").body, True)])
        True
    """
    return bool(known) and any(truth_of(test, known) is (not truth) for test, truth in facts)


def truth_of(test: ast.expr, known: Constants) -> bool | None:
    """Return whether a test is true by what is known; None where that is not seen."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        truth = truth_of(test.operand, known)
        return None if truth is None else not truth
    if isinstance(test, ast.BoolOp):
        ends = isinstance(test.op, ast.Or)
        parts = [truth_of(each, known) for each in test.values]
        return ends if ends in parts else None if None in parts else not ends
    try:
        return bool(_value(test, known))
    except (_UnknownError, TypeError):
        return None


def _value(node: ast.expr, known: Constants) -> object:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        number = _value(node.operand, known)
        if isinstance(number, (int, float)):
            return -number
    if isinstance(node, ast.Name) and node.id in known:
        return known[node.id].value
    if isinstance(node, (ast.List, ast.Set, ast.Tuple)):
        return tuple(_value(each, known) for each in node.elts)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        one, other = _value(node.left, known), _value(node.comparators[0], known)
        return _COMPARED[type(node.ops[0])](one, other)
    func = node.func if isinstance(node, ast.Call) else None
    if isinstance(node, ast.Call) and isinstance(func, ast.Attribute) and func.attr in _TEXTS:
        text = _value(func.value, known)
        if isinstance(text, str) and not node.keywords:
            return getattr(text, func.attr)(*(_value(each, known) for each in node.args))
    raise _UnknownError
