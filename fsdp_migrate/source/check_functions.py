"""Functions that choose layers of a sharded model by the class's name, which a unit has no more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.nodes import argument_of, dotted, parameters_of, text_of, walk_for


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


BY_NAME: Final = (
    "This check_fn goes by the class itself: a unit's is FSDP and its name now, so that here it finds no "
    "unit, and nothing is recomputed, without an error."
)
NOT_SEEN: Final = (
    "See that its check_fn asks isinstance: one that compares type(module), or the class's name, finds no "
    "unit here, whose class is FSDP and that name, without an error."
)
_PLACE: Final = 2
_DEEPEST: Final = 3
_PARTIALS: Final = frozenset({"functools.partial"})
_STARTS: Final = frozenset({"match", "fullmatch", "startswith"})


def words_of_check(source: Source, call: cst.Call) -> str:
    """Return what is said of the ``check_fn`` that a call is given; nothing if it is right."""
    check = argument_of(call, _PLACE, {"check_fn"})
    if check is None or dotted(check) == "None":
        return ""
    bodies = list(_bodies(source, check, _DEEPEST))
    if any(_goes_by_class(source, body) for body in bodies if body is not None):
        return BY_NAME
    return NOT_SEEN if None in bodies else ""


def _bodies(source: Source, check: cst.BaseExpression, depth: int) -> Iterator[cst.CSTNode | None]:
    """Yield what a function runs of this source, with what it calls; None for what is not seen."""
    if isinstance(check, cst.Call) and source.index.qualified(check.func) & _PARTIALS and check.args:
        yield from _bodies(source, check.args[0].value, depth)
        return
    if isinstance(check, cst.Lambda):
        yield check.body
        yield from _called(source, check, depth)
        return
    found = _definitions(source, check)
    if not found:
        is_bound = isinstance(check, cst.Name) and _is_bound(source, check)
        held = last_value(source.index, check) if isinstance(check, cst.Name) and is_bound else None
        if held is not None and depth:
            yield from _bodies(source, held, depth - 1)
        else:
            yield None
    for function in found:
        yield function.body
        yield from _called(source, function, depth)


def _called(
    source: Source, function: cst.FunctionDef | cst.Lambda, depth: int
) -> Iterator[cst.CSTNode | None]:
    """Yield what a check hands its module on to; None for functions of other sources."""
    names = {each.name.value for each in parameters_of(function)}
    for call in walk_for(function.body, cst.Call) if depth else ():
        is_given = any(dotted(arg.value) in names for arg in call.args)
        if is_given and isinstance(call.func, cst.Name) and _is_bound(source, call.func):
            yield from _bodies(source, call.func, depth - 1)


def _is_bound(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether a name is given a value in this source, and is not Python's own."""
    return (
        isinstance(node, cst.Name)
        and node in source.index.scopes
        and bool(source.index.scopes[node].lookup(node.value))
    )


def _definitions(source: Source, node: cst.BaseExpression) -> list[cst.FunctionDef]:
    if not isinstance(node, cst.Name) or not _is_bound(source, node):
        return []
    bindings = source.index.scopes[node].lookup(node.value)
    return [each.node for each in bindings if isinstance(each.node, cst.FunctionDef)]


def _goes_by_class(source: Source, body: cst.CSTNode) -> bool:
    """Tell whether a body compares a class, or its whole name; ``"Block" in name`` is true of units, too."""
    for test in walk_for(body, cst.Comparison):
        others = (
            each.comparator
            for each in test.comparisons
            if not isinstance(each.operator, (cst.In, cst.NotIn)) or not _is_class(source, each.comparator)
        )
        if any(_is_class(source, each) for each in (test.left, *others)):
            return True
    return any(
        isinstance(call.func, cst.Attribute)
        and call.func.attr.value in _STARTS
        and any(_is_class(source, each) for each in (call.func.value, *(arg.value for arg in call.args)))
        for call in walk_for(body, cst.Call)
    )


def _is_class(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether an expression is the class of something, or the name of it."""
    if isinstance(node, cst.Name) and node in source.index.scopes:
        node = last_value(source.index, node) or node
    while isinstance(node, cst.Attribute) and node.attr.value in {"__name__", "__qualname__"}:
        node = node.value
    if isinstance(node, cst.Attribute):
        return node.attr.value == "__class__"
    return isinstance(node, cst.Call) and text_of(node.func) == "type" and len(node.args) == 1
