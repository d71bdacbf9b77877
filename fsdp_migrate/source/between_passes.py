"""Places between a forward of a sharded model and its backward, where the root shows whole parameters.

So does each unit that is not sharded again. Under FSDP2 these are plain tensors without gradients: those of
the step before stand at the sharded parameters, which the backward adds its own to.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.fails_at_once import is_backward
from fsdp_migrate.source.parameter_values import WEIGHTS
from fsdp_migrate.source.passes_elsewhere import (
    BACKWARD,
    CHANGED as _CHANGED,
    EMPTIED as _EMPTIED,
    EMPTIES,
    FOREACH,
    FORWARD,
    KEEP,
    Deed,
)
from fsdp_migrate.source.python.last_values import last_value, stands_for
from fsdp_migrate.source.python.lightning_models import run_in
from fsdp_migrate.source.python.loops import binds, loops_around
from fsdp_migrate.source.python.nodes import dotted, given_by_name, placed_arguments, text_of, walk, walk_for
from fsdp_migrate.source.python.parameters import PARAMETERS


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.parameter_values import ParameterValues
    from fsdp_migrate.source.python.text import Source


# Lightning runs these after the step's forward, Composer the others; no backward has been.
LIGHTNINGS: Final = re.compile(r"^(?:on_before_(?:backward|zero_grad)|optimizer_zero_grad)$")
_BETWEEN: Final = re.compile(
    rf"{LIGHTNINGS.pattern}|^(?:after_forward|(?:after|before)_loss|before_backward)$"
)
_STEPS_OF_ONE: Final = re.compile(r"^(?:compute_loss|training_step)$")
_NOT_REACHED: Final = (
    "between a forward and its backward this does not reach the gradients of the step before, without an "
    "error: FSDP2 keeps them at the sharded parameters, and the root, and each unit that is not sharded "
    "again, shows whole ones here, which have none. "
)
EMPTIED: Final = (
    f"{_NOT_REACHED}So the backward adds to them. Call optimizer.zero_grad() or model.zero_grad() in the "
    "place of this, or do it above the forward."
)
CHANGED: Final = (
    f"{_NOT_REACHED}Do it above the forward, or go through the parameters of optimizer.param_groups, which "
    "are the sharded ones."
)
_DEEPEST: Final = 3


def is_between(source: Source, node: cst.CSTNode, *, or_in_steps: bool = True) -> bool:
    """Tell whether a place is run between a forward of a sharded model and its backward.

    Args:
        source: The source.
        node: The place.
        or_in_steps: Whether in a framework's step a forward may have been that is not seen.
    """
    function, order = source.index.function(node), source.index.order
    home = function or source.module
    owner = source.index.class_of(home) if function is not None else None
    name = function.name.value if function is not None else ""
    if _BETWEEN.search(name) or (owner is not None and run_in(owner, _BETWEEN).search(name)):
        return True
    calls = [each for each in walk_for(home, cst.Call) if source.index.function(each) is function]
    runs = {each: last for each in calls if (last := _last_pass(source, each, 0))}
    above = [each for each in runs if order[each] < order[node] and not source.index.excludes(each, node)]
    is_step = owner is not None and run_in(owner, _STEPS_OF_ONE).search(name) is not None
    if not above:
        return is_step and or_in_steps
    latest = max(above, key=lambda each: done(source, each))
    is_run_on = is_step or any(runs[each] == "backward" for each in runs if order[each] > order[node])
    return runs[latest] == "forward" and is_run_on


def _last_pass(source: Source, call: cst.Call, depth: int) -> str:
    """Return which pass a call runs, itself or in a function here: the last one; or nothing."""
    if is_backward(call):
        return "backward"
    if source.models.certainty(call.func) is not None or _gives_the_loss(source, call):
        return "forward"
    found = _last_elsewhere(source, call)
    for function in source.models.guards.functions(call.func) if depth < _DEEPEST else ():
        own = [e for e in walk_for(function.body, cst.Call) if source.index.function(e) is function]
        own.sort(key=lambda each: done(source, each), reverse=True)
        found = next((p for e in own if (p := _last_pass(source, e, depth + 1))), found)
    return found


def _last_elsewhere(source: Source, call: cst.Call) -> str:
    """Return which pass a function of another file runs last, of the model that it is given here."""
    for deed in elsewhere(source, call, FORWARD, BACKWARD):
        given = given_to_deed(call, deed)
        if deed.what == BACKWARD or (given is not None and source.models.certainty(given) is not None):
            return deed.what
    return ""


def elsewhere(source: Source, call: cst.Call, *what: str) -> Iterator[Deed]:
    """Yield what is known of a function of another file that is called: of some kinds."""
    if not source.links.deeds or source.models.guards.functions(call.func):
        return
    for name in source.index.qualified(call.func):
        last = name.rpartition(".")[2]
        yield from (Deed(*each) for each in source.links.deeds if each[0] == last and each[1] in what)


def given_to_deed(call: cst.Call, deed: Deed) -> cst.BaseExpression | None:
    """Return what a call gives to the argument that such a thing is done to."""
    placed = placed_arguments(call)[deed.place : deed.place + 1] if deed.place >= 0 else []
    return next(iter([*given_by_name(call, deed.name), *placed]), None)


def done(source: Source, call: cst.CSTNode) -> tuple[int, int]:
    """Return a key that sorts calls by when they are done: of ``model(x).backward()`` the inner first."""
    order = source.index.order
    return max(order[each] for each in walk(call) if each in order), -order[call]


def _gives_the_loss(source: Source, call: cst.Call) -> bool:
    """Tell whether a call is given a sharded model, and a backward is run of what it gives."""
    above = source.index.parents[call]
    names = {dotted(each.target) for each in above.targets} if isinstance(above, cst.Assign) else set()
    names -= {None}
    if not names or not any(source.models.certainty(arg.value) is not None for arg in call.args):
        return False
    function = source.index.function(call)
    return any(
        is_backward(each)
        and source.index.function(each) is function
        and any(part.value in names for part in walk_for(each, cst.Name))
        for each in source.calls
    )


def unreached(values: ParameterValues) -> Iterator[tuple[cst.CSTNode, str]]:
    """Yield where gradients of the step before are emptied or changed in vain, and what is said of it."""
    source = values.source
    told: set[cst.CSTNode] = set()
    for node, is_emptied in _changes(values):
        for place in _places(source, _obtained(source, node), 0):
            if place not in told:
                told.add(place)
                yield place, EMPTIED if is_emptied else CHANGED
    for call, nodes, is_emptied in _by_others(values):
        for place in _places(source, nodes, 0):
            if place not in told:
                told.update((place, call))
                yield place, EMPTIED if is_emptied else CHANGED


def _by_others(values: ParameterValues) -> Iterator[tuple[cst.Call, list[cst.CSTNode], bool]]:
    """Yield the calls of other files' functions that empty or change gradients, and where they are asked."""
    source = values.source
    for call in source.calls if source.links.deeds else ():
        for deed in elsewhere(source, call, _EMPTIED, _CHANGED):
            given = given_to_deed(call, deed)
            if given is None:
                continue
            if values.is_sharded(given):
                yield call, [call], deed.what == _EMPTIED
            elif values.is_many(given):
                yield call, list(_asked(source, given, 0)), deed.what == _EMPTIED


def _changes(values: ParameterValues) -> Iterator[tuple[cst.Attribute, bool]]:
    """Yield gradients of a sharded model that are set, or changed in place, and whether they are emptied."""
    for node in values.source.attributes:
        if node.attr.value != "grad" or not values.is_one(node.value):
            continue
        how = _how_changed(values.source, node)
        if how is not None:
            yield node, how


def _how_changed(source: Source, node: cst.Attribute) -> bool | None:
    """Return whether a gradient is emptied, or changed otherwise; None where it is only read."""
    parents = source.index.parents
    whole: cst.CSTNode = node
    while isinstance(above := parents[whole], cst.Attribute) and above.attr.value == "data":
        whole = above
    if isinstance(above, cst.Del):
        return True
    if isinstance(above, cst.AugAssign):
        return False if above.target is whole else None
    if isinstance(above, cst.AssignTarget):
        value = getattr(parents[above], "value", None)
        return (
            not any(each.attr.value == "grad" for each in walk_for(value, cst.Attribute)) if value else None
        )
    if isinstance(above, cst.Attribute) and isinstance(parents[above], cst.Call):
        name = above.attr.value
        is_in_place = name.endswith("_") and not name.startswith("_") and name not in KEEP
        return name in EMPTIES if is_in_place else None
    return _how_changed_by_foreach(source, node)


def _how_changed_by_foreach(source: Source, node: cst.CSTNode) -> bool | None:
    """Return the same of what ``torch._foreach_zero_([p.grad for p in ...])`` is given."""
    for above in source.index.ancestors(node):
        if isinstance(above, cst.BaseStatement):
            return None
        name = dotted(above.func) if isinstance(above, cst.Call) else None
        if name is not None and FOREACH.fullmatch(name):
            return name == "torch._foreach_zero_"
    return None


def _obtained(source: Source, node: cst.Attribute) -> list[cst.CSTNode]:
    """Return where a parameter, whose gradient it is, is asked of its module: for what it shows there.

    What an optimizer holds, and a list that was made above the forward, are the sharded ones.
    """
    index = source.index
    found = node.value
    if not isinstance(found, cst.Name):
        return [node]
    loop = next((each for each in loops_around(index, found) if binds(each, found.value)), None)
    value = loop.iter if loop is not None else last_value(index, found) if found in index.scopes else None
    return list(_asked(source, value, 0)) if value is not None else []


def _asked(source: Source, value: cst.BaseExpression, depth: int) -> Iterator[cst.CSTNode]:
    """Yield where a list of parameters, or one, is asked of a module."""
    if depth > _DEEPEST:
        return
    if isinstance(value, cst.Name) and value in source.index.scopes:
        held = last_value(source.index, value)
        given = [held] if held is not None else stands_for(source.index, source.models.guards, value)
        for each in given:
            yield from _asked(source, each, depth + 1)
        return
    asks = (each for each in walk_for(value, cst.Call) if isinstance(each.func, cst.Attribute))
    is_list = any(text_of(each.func).rpartition(".")[2] in PARAMETERS for each in asks)
    if is_list or (isinstance(value, cst.Attribute) and value.attr.value in WEIGHTS):
        yield value


def _places(source: Source, nodes: list[cst.CSTNode], depth: int) -> Iterator[cst.CSTNode]:
    """Yield the places between two passes: these, or the calls of the functions that have them."""
    for node in nodes:
        if is_between(source, node, or_in_steps=False):
            yield node
            continue
        function = source.index.function(node)
        if function is not None and depth < _DEEPEST:
            calls = [*source.models.guards.calls.get(function, ())]
            calls += [
                each
                for each in source.index.calls_of_method(function.name.value)
                if function in source.models.guards.functions(each.func)
            ]
            yield from _places(source, list(calls), depth + 1)
