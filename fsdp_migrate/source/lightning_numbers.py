"""Numbers of devices that a branch around FSDP's strategy shows to be others than a source sets."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Final

import libcst as cst

from fsdp_migrate.source.python.nodes import text_of, walk


if TYPE_CHECKING:
    from collections.abc import Callable

    from fsdp_migrate.source.python.text import Source
    from fsdp_migrate.source.python.values import Values


_COMPARES: Final[dict[type[cst.BaseCompOp], Callable[[int, int], bool]]] = {
    cst.Equal: operator.eq,
    cst.GreaterThan: operator.gt,
    cst.GreaterThanEqual: operator.ge,
    cst.LessThan: operator.lt,
    cst.LessThanEqual: operator.le,
    cst.NotEqual: operator.ne,
}


def value_there(source: Source, values: Values, given: cst.BaseExpression, place: cst.CSTNode) -> Any:
    """Return the value of what a Trainer is given, as it is where a strategy is made.

    ``devices = 1`` above ``if devices > 1: strategy = FSDPStrategy()`` is what users of a script change.
    """
    value = values.read(given)
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    facts = source.guards.facts(place)
    if any(_denies(values, test, given, value, truth=truth) for test, truth in facts):
        return values.unknown(given)
    return value


def _denies(
    values: Values, test: cst.BaseExpression, given: cst.BaseExpression, value: int, *, truth: bool
) -> bool:
    """Tell whether a test that is ``truth`` cannot be, if what it asks for has the value that is seen."""
    if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And) is truth:
        sides = (test.left, test.right)
        return any(_denies(values, each, given, value, truth=truth) for each in sides)
    if not isinstance(test, cst.Comparison) or len(test.comparisons) != 1:
        return False
    compare = _COMPARES.get(type(test.comparisons[0].operator))
    left, right = (_number(values, each) for each in (test.left, test.comparisons[0].comparator))
    if compare is None or left is None or right is None or compare(left, right) is truth:
        return False
    named = (each for each in walk(test) if isinstance(each, (cst.Attribute, cst.Name)))
    return any(text_of(each) == text_of(given) or _number(values, each) == value for each in named)


def _number(values: Values, node: cst.BaseExpression) -> int | None:
    """Return a whole number, also a product: ``devices * num_nodes``."""
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Multiply):
        left, right = _number(values, node.left), _number(values, node.right)
        return left * right if left is not None and right is not None else None
    value = values.read(node)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
