"""What the statements of a block have made sure for those below them: assertions, and ``if ...: return``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.python.branches import leaves
from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.nodes import dotted, text_of, walk_for


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fsdp_migrate.source.python.scopes import Index


_OF_MODULES: Final = frozenset(
    {"eval", "load_state_dict", "named_parameters", "parameters", "state_dict", "train"}
)


def made_sure(
    block: cst.IndentedBlock | cst.Module,
) -> Iterator[tuple[cst.CSTNode, cst.BaseExpression, bool]]:
    r"""Yield the statements of a block behind which a test is known to be true, or false.

    Example:
        >>> block = cst.parse_module("assert a\nif b:\n    raise E\n")
        >>> [(test.value, truth) for _, test, truth in made_sure(block)]
        [('a', True), ('b', False)]
    """
    for each in block.body:
        if isinstance(each, cst.SimpleStatementLine):
            tests = (_asserted(small) for small in each.body)
            yield from ((each, test, True) for test in tests if test is not None)
        elif isinstance(each, (cst.If, cst.While)) and _is_past(each):
            yield each, each.test, False


def ruled_out(
    choice: cst.If | cst.IfExp, known: Sequence[tuple[cst.BaseExpression, bool]]
) -> cst.BaseExpression:
    """Return what is false in an ``elif`` that asks what ``if`` did: ``b`` below ``if a and b: elif a:``.

    Args:
        choice: What asked first.
        known: What is true, or not, in a later branch.
    """
    below, later = choice.orelse, set[cst.CSTNode]()
    while isinstance(below, cst.If):  # nothing runs between its tests
        later.add(below.test)
        below = below.orelse
    parts = _conjuncts(choice.test)
    true = {text_of(part) for test, truth in known if truth and test in later for part in _conjuncts(test)}
    left = [each for each in parts if text_of(each) not in true or any(walk_for(each, cst.Call))]
    left = [each for each in left if not _is_true_of_modules(each)] or left
    return left[0] if len(left) == 1 else choice.test


def _is_true_of_modules(test: cst.BaseExpression) -> bool:
    """Tell whether it asks what every module has: ``hasattr(model, "state_dict")``."""
    if not isinstance(test, cst.Call) or dotted(test.func) != "hasattr" or len(test.args) != 2:
        return False
    asked = test.args[1].value
    return isinstance(asked, cst.SimpleString) and asked.evaluated_value in _OF_MODULES


def left_over(
    index: Index, known: Sequence[tuple[cst.BaseExpression, bool]]
) -> Iterator[tuple[cst.BaseExpression, bool]]:
    """Yield what is false of ``a and b``, which is, where ``a`` is true: ``if not both: if a:``.

    Args:
        index: The source.
        known: What is true, or not, at a place.
    """
    parts_known = [each for test, truth in known for each in _each_of(test, truth=truth)]
    true = {text_of(test) for test, truth in parts_known if truth and _is_once(index, test)}
    for test, truth in parts_known if true else ():
        is_name = not truth and isinstance(test, cst.Name) and test in index.scopes and _is_once(index, test)
        held = last_value(index, test) if is_name and isinstance(test, cst.Name) else None
        parts = _conjuncts(held) if held is not None else []
        left = [each for each in parts if text_of(each) not in true]
        if len(left) == 1 and len(parts) > 1:
            yield left[0], False


def _each_of(test: cst.BaseExpression, *, truth: bool) -> Iterator[tuple[cst.BaseExpression, bool]]:
    """Yield what a test says part by part: of ``a and not b`` that is true, ``a`` is and ``b`` is not."""
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        yield from _each_of(test.expression, truth=not truth)
    elif isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And) is truth:
        yield from _each_of(test.left, truth=truth)
        yield from _each_of(test.right, truth=truth)
    else:
        yield test, truth


def _is_once(index: Index, node: cst.BaseExpression) -> bool:
    """Tell whether a name has one value in its function, from the first to the last line."""
    bound = (
        index.scopes[node].lookup(node.value) if isinstance(node, cst.Name) and node in index.scopes else []
    )
    return len(bound) == 1


def _conjuncts(test: cst.BaseExpression) -> list[cst.BaseExpression]:
    """Return what is all true where ``a and b`` is."""
    if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And):
        return [*_conjuncts(test.left), *_conjuncts(test.right)]
    return [test]


def _asserted(statement: cst.BaseSmallStatement) -> cst.BaseExpression | None:
    """Return what a statement makes sure: ``assert x``, ``assertTrue(x)``, ``assertIsInstance(x, A)``."""
    if isinstance(statement, cst.Assert):
        return statement.test
    call = statement.value if isinstance(statement, cst.Expr) else None
    if not isinstance(call, cst.Call) or not call.args:
        return None
    name = (dotted(call.func) or "").partition("self.")[2]
    return call if name == "assertIsInstance" else call.args[0].value if name == "assertTrue" else None


def asks_class(call: cst.Call) -> bool:
    """Tell whether a call is a check for a class, or asserts that it is true."""
    name = dotted(call.func) or ""
    return len(call.args) >= 2 and (name == "isinstance" or name.endswith(".assertIsInstance"))


def _is_past(each: cst.If | cst.While) -> bool:
    """Tell whether a test is false behind a statement, one that leaves or that looks for a class."""
    if isinstance(each, cst.If):
        return each.orelse is None and leaves(each.body)
    check = each.test.expression if isinstance(each.test, cst.UnaryOperation) else None
    return isinstance(check, cst.Call) and asks_class(check) and not any(walk_for(each, cst.Break))
