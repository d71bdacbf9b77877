"""Models that a source wraps twice, one wrapper around the other: FSDP2 shards a model once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.branches import leaves
from fsdp_migrate.source.python.last_values import was_run
from fsdp_migrate.source.python.nodes import argument_of, dotted
from fsdp_migrate.source.python.wrappers import AROUND_MODEL, SAME_MODEL


if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from fsdp_migrate.source.python.text import Source


_DEEPEST = 4
# What takes a wrapper off gives another model back.
_AROUND = {name: place for name, place in AROUND_MODEL.items() if name.startswith(("torch.", "typing"))}


def wrapped_twice(source: Source, calls: Collection[cst.Call]) -> set[cst.Call]:
    """Return the calls around what another has wrapped just before, and those others.

    Args:
        source: The source.
        calls: Its calls that make FSDP1's models.
    """
    found: set[cst.Call] = set()
    for call in calls:
        model = argument_of(call, 0, {"module"})
        inner = set(_made_by(source, model, calls, call, 0)) if model is not None else set()
        found |= {call, *inner} if inner else set()
    return found


def _made_by(
    source: Source, value: cst.BaseExpression, calls: Collection[cst.Call], place: cst.CSTNode, depth: int
) -> Iterator[cst.Call]:
    """Yield the calls that have made what an expression is, where a place below uses it."""
    value = _itself(source, value)
    if depth > _DEEPEST:
        return
    if isinstance(value, cst.Call) and value in calls:
        yield from (value,) if value is not place else ()
    elif isinstance(value, cst.Call):
        for function in source.models.guards.functions(value.func):
            yield from _given_by(source, function, calls, depth + 1)
    elif isinstance(value, cst.IfExp):
        for part in (value.body, value.orelse):
            yield from _made_by(source, part, calls, place, depth + 1)
    elif isinstance(value, (cst.Name, cst.Attribute)):
        for target, given in _last_given(source, value):
            yield from (
                each
                for each in _made_by(source, given, calls, place, depth + 1)
                if _both_run(source, target, value)
            )


def _last_given(
    source: Source, name: cst.Name | cst.Attribute
) -> list[tuple[cst.CSTNode, cst.BaseExpression]]:
    """Return what the same function gives to a name above a place, down from the last that always runs."""
    order, above = source.index.order, set(source.index.ancestors(name))
    function = source.index.function(name)
    given = [
        (target, value)
        for target, value in _bindings(source, name)
        if value not in above and source.index.function(target) is function and order[target] < order[name]
    ]
    given.sort(key=lambda each: order[each[0]])
    sure = [count for count, (target, _) in enumerate(given) if was_run(source.index, target, name)]
    last = given[sure[-1] :] if sure else given
    return [(target, value) for target, value in last if value is not None]


def _bindings(
    source: Source, name: cst.Name | cst.Attribute
) -> Iterator[tuple[cst.CSTNode, cst.BaseExpression | None]]:
    if isinstance(name, cst.Name):
        bindings = source.index.scopes[name].lookup(name.value) if name in source.index.scopes else ()
        yield from ((each.node, each.value if each.index is None else None) for each in bindings)
        return
    for target in source.index.places_set(dotted(name) or ""):
        assign = source.index.parents[target]
        if source.index.class_of(target) is source.index.class_of(name):
            yield target, assign.value if isinstance(assign, cst.Assign) else None


def _both_run(source: Source, target: cst.CSTNode, name: cst.Name | cst.Attribute) -> bool:
    """Tell whether a place is reached in the same run as an assignment above it."""
    index, models = source.index, source.models
    if index.excludes(target, name) or models.is_other_branch(name):
        return False
    if not was_run(index, target, name) and not was_run(index, name, target):
        return False  # in two branches of two switches, of which one may be on: `if fsdp:`, `if hsdp:`
    key = models.key_of(name)
    if key is not None and models.switches.is_off(name, key[0], [_name_of(target)]):
        return False
    below: cst.CSTNode = target
    around = set(index.ancestors(name))
    for block in index.ancestors(target):
        if block in around:
            if isinstance(block, cst.Try) and below is block.body:
                return around.isdisjoint(block.handlers)  # they wrap otherwise what could not be wrapped
            return True
        if isinstance(block, cst.BaseSuite) and leaves(block):
            return False
        below = block
    return True


def _name_of(target: cst.CSTNode) -> cst.CSTNode:
    return target.target if isinstance(target, cst.AssignTarget) else target


def _given_by(
    source: Source, function: cst.FunctionDef, calls: Collection[cst.Call], depth: int
) -> Iterator[cst.Call]:
    """Yield the calls by which a function makes what it returns, if it makes that in any case."""
    returns = [
        each
        for each in source.index.by_kind.get(cst.Return, ())
        if isinstance(each, cst.Return) and source.index.function(each) is function
    ]
    made = [
        set(_made_by(source, each.value, calls, each, depth)) if each.value is not None else set()
        for each in returns
    ]
    yield from (each for part in made for each in part) if all(made) else ()


def _itself(source: Source, value: cst.BaseExpression) -> cst.BaseExpression:
    """Return a model without what gives it back: ``model.to(device)``, ``torch.compile(model)``."""
    while isinstance(value, cst.Call):
        around = next((_AROUND[each] for each in source.index.qualified(value.func) if each in _AROUND), None)
        if isinstance(value.func, cst.Attribute) and value.func.attr.value in SAME_MODEL:
            value = value.func.value
        elif around is not None and len(value.args) > around:
            value = value.args[around].value
        else:
            break
    return value
