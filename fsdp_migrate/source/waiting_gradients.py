"""Where gradients are asked for that FSDP2 holds back: in a ``no_sync`` window, before they are reduced.

There ``p.grad`` is None. FSDP1's was this rank's own gradient, not reduced yet.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import libcst as cst

from fsdp_migrate.source.fails_at_once import is_backward
from fsdp_migrate.source.method_calls import sureness
from fsdp_migrate.source.python.branches import leaves
from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.nodes import text_of, walk_for


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.parameter_values import ParameterValues
    from fsdp_migrate.source.python.text import Source


_WAITS: Final = (
    "{} p.grad is None here: FSDP2 keeps gradients back until they are reduced, where FSDP1 showed this "
    "rank's own. Ask for them below the backward that is not under no_sync."
)
ALWAYS: Final = _WAITS.format("under no_sync")
AT_TIMES: Final = _WAITS.format("in rounds under no_sync")
_ASKS = frozenset({"clip_grad_norm", "clip_grad_norm_", "clip_grad_value_", "get_total_norm", "unscale_"})
_GRADIENTS = re.compile(r"\.(?:main_)?grads?\b|\b(?:main_)?(?:grads?|gradients)\b")
_ENDS = frozenset({"step"})
_STEPPED = re.compile(r"optim|(^|[._])opt\d*(_|$)|scaler|trainer")
_LOOPS = (cst.For, cst.While)


class Window(NamedTuple):
    """A ``with`` under which gradients are not reduced, and whether that is so each time."""

    node: cst.With
    is_always: bool


def waiting(values: ParameterValues) -> dict[cst.CSTNode, tuple[cst.CSTNode, bool]]:
    """Return the statements that ask for gradients which wait: what asks, and whether they always do."""
    source = values.source
    if "no_sync" not in source.code:
        return {}
    windows = [each for each in _windows(source) if _has_backward(source, each.node.body)]
    found: dict[cst.CSTNode, tuple[cst.CSTNode, bool]] = {}
    for node in _asking(values) if windows else ():
        if not found.keys().isdisjoint(source.index.ancestors(node)):
            continue
        at = [known for each in windows if (known := _is_in(source, each, node)) is not None]
        if at:
            found.setdefault(source.index.statement(node), (node, any(at)))
    return found


def _windows(source: Source) -> Iterator[Window]:
    for node in source.index.by_kind.get(cst.With, ()):
        within = cst.ensure_type(node, cst.With)
        for each in within.items:
            value: cst.BaseExpression | None = each.item
            is_called = isinstance(value, cst.Call) and not value.args and isinstance(value.func, cst.Name)
            name = value.func if isinstance(value, cst.Call) and is_called else value
            given, is_sure = [value], True
            if isinstance(name, cst.Name) and name in source.index.scopes:
                last = last_value(source.index, name)
                is_sure = last is not None
                given = [last] if is_sure else [each.value for each in source.index.bindings_of(name)]
            asked = [_no_sync(source, each) for each in given if each is not None]
            if any(each is not None for each in asked):
                yield Window(within, is_sure and asked == [True])


def _no_sync(source: Source, value: cst.BaseExpression) -> bool | None:
    """Return whether an expression is an FSDP1 model's ``no_sync`` each time; None where it never is."""
    for each in walk_for(value, cst.Attribute):
        if each.attr.value == "no_sync" and sureness(source, each.value) in {"sure", "mixed"}:
            func = value.func if isinstance(value, cst.Call) else value
            return func is each
    return None


def _has_backward(source: Source, body: cst.CSTNode) -> bool:
    for call in walk_for(body, cst.Call):
        if is_backward(call):
            return True
        inner = source.models.guards.functions(call.func)
        if any(is_backward(each) for function in inner for each in walk_for(function.body, cst.Call)):
            return True
    return False


def _asking(values: ParameterValues) -> Iterator[cst.CSTNode]:
    """Yield what asks for gradients: of parameters, clipping, and functions here that ask for them."""
    source = values.source
    functions: set[cst.FunctionDef] = set()
    for node in source.attributes:
        above = source.index.parents[node]
        is_set = isinstance(above, (cst.AssignTarget, cst.Del)) and getattr(above, "target", None) is node
        if node.attr.value != "grad" or is_set or not values.is_one(node.value):
            continue
        yield node
        function = source.index.function(node)
        functions |= {function} if function is not None else set()
    for call in source.calls:
        if isinstance(call.func, cst.Attribute) and call.func.attr.value in _ASKS and _is_about(values, call):
            yield call.func  # the call itself may be rewritten
        elif any(each in functions for each in source.models.guards.functions(call.func)):
            yield call


def _is_about(values: ParameterValues, call: cst.Call) -> bool:
    """Tell whether a call clips, measures or unscales a sharded model's gradients."""
    func = cst.ensure_type(call.func, cst.Attribute)
    if func.attr.value == "unscale_":
        return "scaler" in text_of(func.value).lower()
    if values.source.models.certainty(func.value) is not None:
        return True
    return bool(call.args) and (values.is_many(call.args[0].value) or values.is_one(call.args[0].value))


def _is_in(source: Source, window: Window, node: cst.CSTNode) -> bool | None:
    """Return whether gradients wait at a place each time by a window; None where they never do."""
    index, order = source.index, source.index.order
    if index.function(node) is not index.function(window.node) or index.excludes(window.node, node):
        return None
    above = [window.node, *index.ancestors(window.node)]
    if window.node in set(index.ancestors(node)):
        backwards = [each for each in walk_for(window.node.body, cst.Call) if is_backward(each)]
        is_below = not backwards or order[backwards[0]] < order[node]
        # `with nullcontext() if is_last else no_sync(): ...; if is_last: clip()`
        is_left = not window.is_always and _is_guarded(source, window.node, node, window.node)
        return window.is_always if is_below and not is_left else None
    if order[node] < order[window.node]:
        return None
    common = next((each for each in index.ancestors(node) if each in above), None)
    if common is None or isinstance(common, (cst.If, cst.FunctionDef)):
        return None  # in another branch
    if any(isinstance(each, _LOOPS) for each in above[: above.index(common)]):
        return None  # the loop may go on until the gradients are reduced
    if any(isinstance(each, cst.IndentedBlock) and leaves(each) for each in above[: above.index(common)]):
        return None  # `continue` below it: the place is of another round
    if _is_reduced_between(source, window.node, node):
        return None
    is_certain = window.is_always and not _choices(above[: above.index(common)])
    if is_certain:
        return True
    return None if _is_guarded(source, window.node, node, common) else False


def _choices(nodes: list[cst.CSTNode]) -> list[cst.CSTNode]:
    return [each for each in nodes if isinstance(each, (cst.If, cst.Try, cst.TryStar, cst.Else))]


def _is_reduced_between(source: Source, window: cst.With, node: cst.CSTNode) -> bool:
    """Tell whether something between a window and a place reduces the gradients, or steps."""
    index, order = source.index, source.index.order
    inside = set(walk_for(window, cst.Call))
    for call in source.calls:
        if not order[window] < order[call] < order[node] or call in inside:
            continue
        if index.function(call) is not index.function(node) or index.excludes(call, node):
            continue
        if is_backward(call) and not index.excludes(call, window):
            return True
        is_method = isinstance(call.func, cst.Attribute) and call.func.attr.value in _ENDS
        if is_method and _STEPPED.search(text_of(cst.ensure_type(call.func, cst.Attribute).value).lower()):
            return True
    return False


def _is_guarded(source: Source, window: cst.With, node: cst.CSTNode, common: cst.CSTNode) -> bool:
    """Tell whether a choice below a window, of anything but gradients, decides if a place is reached."""
    order, index = source.index.order, source.index
    for above in index.ancestors(node):
        if above is common:
            break
        if isinstance(above, cst.Else) or (isinstance(above, cst.If) and not _asks_gradients(above, node)):
            return True
    around = set(index.ancestors(node))
    choices = (cst.ensure_type(e, cst.If) for e in index.by_kind.get(cst.If, ()) if e not in around)
    return any(
        order[window] < order[each] < order[node] and leaves(each.body)
        for each in choices
        if index.function(each) is index.function(node)
    )


def _asks_gradients(choice: cst.If, node: cst.CSTNode) -> bool:
    """Tell whether a choice is about gradients, or is what asks for them itself."""
    return _GRADIENTS.search(text_of(choice.test)) is not None or any(
        each is node for each in walk_for(choice.test, type(node))
    )
