"""Calls that wrap a model only where no module of it is wrapped yet: no FSDP comes around its parts there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.python.asked_classes import answer_of, asks_each, is_fsdp1_among
from fsdp_migrate.source.python.branches import leaves
from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.nodes import argument_of, dotted, placed_parameters, text_of, walk_for


if TYPE_CHECKING:
    from fsdp_migrate.source.python.text import Source


_DEEPEST: Final = 3
_MODULES: Final = frozenset({"modules", "named_modules"})


def is_unless_wrapped(source: Source, call: cst.Call) -> bool:
    """Tell whether a call of FSDP1's class is reached only where the model has no wrapped module.

    ``if any(isinstance(m, FSDP) for m in model.modules()): return model`` above it.
    """
    model = argument_of(call, 0, {"module"})
    if model is None:
        return False
    text = text_of(model)
    return any(
        _has_none(source, test, text, truth=truth, depth=0)
        for test, truth in source.models.guards.facts(call)
    ) or _left_by_loop(source, call, text)


def _has_none(source: Source, test: cst.BaseExpression, text: str, *, truth: bool, depth: int) -> bool:
    """Tell whether a test that is ``truth`` says that no module of a model is FSDP1's."""

    def says(part: cst.BaseExpression, name: str = text, *, want: bool = truth) -> bool:
        return depth < _DEEPEST and _has_none(source, part, name, truth=want, depth=depth + 1)

    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return says(test.expression, want=not truth)
    if isinstance(test, cst.BooleanOperation):
        # Of `a and b` that is true both are; of `a or b` that is false neither is.
        is_each = isinstance(test.operator, cst.And) is truth
        return is_each and (says(test.left) or says(test.right))
    if isinstance(test, cst.Name) and test in source.index.scopes:
        value = last_value(source.index, test)
        return value is not None and says(value)
    if not isinstance(test, cst.Call) or truth or not test.args:
        return False
    if asks_each(test, text, is_fsdp1_among(source.index)) and f"{text}.children(" not in text_of(test):
        return True
    if text_of(test.args[0].value) != text:
        return False
    for function in source.models.guards.functions(test.func):
        names = [each.name.value for each in placed_parameters(function) if each.name.value != "self"]
        answer = answer_of(function)
        if names and answer is not None and says(answer, names[0]):
            return True
    return False


def _left_by_loop(source: Source, call: cst.Call, text: str) -> bool:
    """Tell whether a loop above goes through the modules, and leaves the function at a wrapped one."""
    function = source.index.function(call)
    for loop in walk_for(function.body, cst.For) if function is not None else ():
        over = loop.iter
        is_over = isinstance(over, cst.Call) and isinstance(over.func, cst.Attribute)
        func = over.func if isinstance(over, cst.Call) else None
        if not is_over or not isinstance(func, cst.Attribute) or func.attr.value not in _MODULES:
            continue
        is_above = source.index.order[loop] < source.index.order[call] and not source.index.excludes(
            loop, call
        )
        if text_of(func.value) == text and is_above and any(_leaves(source, each) for each in loop.body.body):
            return True
    return False


def _leaves(source: Source, choice: cst.CSTNode) -> bool:
    """Tell whether a choice returns, or raises, where what it asks for is FSDP1's."""
    test = choice.test if isinstance(choice, cst.If) else None
    if not isinstance(choice, cst.If) or not isinstance(test, cst.Call) or not leaves(choice.body):
        return False
    is_check = dotted(test.func) == "isinstance" and len(test.args) > 1
    is_left = any(True for kind in (cst.Return, cst.Raise) for _ in walk_for(choice.body, kind))
    return is_check and is_left and is_fsdp1_among(source.index)(test.args[1].value)
