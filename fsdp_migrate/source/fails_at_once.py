"""Whether a run comes to a place at its start: above the first backward, or in the same round of a loop.

What torch refuses there ends the run by itself. Elsewhere it would end it late, such as at a save.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.nodes import dotted, last_name, text_of, walk_for


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fsdp_migrate.source.python.text import Source


_BACKWARDS = frozenset({"backward", "manual_backward"})
_GRADIENTS = frozenset({"grad", "requires_grad"})
_LOOPS = (cst.For, cst.While)
_HANDLERS = (cst.ExceptHandler, cst.ExceptStarHandler)
_DEEPEST = 3


def is_backward(call: cst.Call) -> bool:
    """Tell whether a call is a backward: ``loss.backward()``, ``self.manual_backward(loss)``."""
    name = call.func.attr.value if isinstance(call.func, cst.Attribute) else (dotted(call.func) or "")
    return name in _BACKWARDS


def refused(source: Source, node: cst.CSTNode) -> str:
    """Return the code of a use that torch refuses: FM336, which stops no run, if it ends there at once."""
    return "FM336" if _is_reached(source, node, 0) else "FM423"


def _is_reached(source: Source, node: cst.CSTNode, depth: int) -> bool:
    """Tell whether each training comes to a place before its first step is done."""
    index = source.index
    function = index.function(node)
    if function is None or depth > _DEEPEST or _may_go_round(source, node):
        return False
    backwards = _backwards(source, function)
    if backwards:
        around = [each for each in index.ancestors(node) if isinstance(each, _LOOPS)]
        inside = {each for loop in around for each in walk_for(loop, cst.Call)}
        is_looped = any(isinstance(a, _LOOPS) for call in backwards for a in _within(source, call))
        is_above = all(index.order[node] < index.order[call] for call in backwards)
        return is_above or not is_looped or not inside.isdisjoint(backwards)
    return any(_is_reached(source, call, depth + 1) for call in _calls_of(source, function))


def _backwards(source: Source, function: cst.FunctionDef) -> list[cst.Call]:
    own = (each for each in walk_for(function.body, cst.Call) if source.index.function(each) is function)
    return backwards_in(source, own)


def backwards_in(source: Source, calls: Iterable[cst.Call]) -> list[cst.Call]:
    """Return the calls that run a backward: themselves, or in the function that they call."""
    guards = source.models.guards
    return [
        call
        for call in calls
        if is_backward(call)
        or any(map(is_backward, (e for f in guards.functions(call.func) for e in walk_for(f.body, cst.Call))))
    ]


def _calls_of(source: Source, function: cst.FunctionDef) -> Iterator[cst.Call]:
    guards, name = source.models.guards, function.name.value
    for call in source.calls:
        if last_name(call.func) == name and function in guards.functions(call.func):
            yield call


def _within(source: Source, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield what is around a place, up to its function."""
    for above in source.index.ancestors(node):
        if isinstance(above, (cst.FunctionDef, cst.Lambda)):
            return
        yield above


def _may_go_round(source: Source, node: cst.CSTNode) -> bool:
    """Tell whether something decides if a place is reached, or takes up what is raised there."""
    below = node
    for above in _within(source, node):
        if isinstance(above, (cst.Try, cst.TryStar)) and below is above.body and above.handlers:
            return True
        if isinstance(above, cst.With) and any("suppress" in text_of(each.item) for each in above.items):
            return True
        if isinstance(above, (cst.Else, *_HANDLERS, cst.IfExp, cst.MatchCase)):
            return True
        if isinstance(above, cst.If) and below is not above.test and not _is_about_gradients(above.test):
            return True
        below = above
    return False


def _is_about_gradients(test: cst.BaseExpression) -> bool:
    """Tell whether a test asks for what a step always has: ``if p.grad is not None``."""
    if isinstance(test, cst.BooleanOperation):
        return all(_is_about_gradients(each) for each in (test.left, test.right))
    if isinstance(test, cst.Comparison):
        is_not = all(isinstance(each.operator, (cst.IsNot, cst.NotEqual)) for each in test.comparisons)
        return is_not and _is_about_gradients(test.left)
    return isinstance(test, cst.Attribute) and test.attr.value in _GRADIENTS
