"""Models that a source wraps twice, or in parts and as a whole by one function: FSDP2 shards a model once.

Also what another wrapper has taken before: prepare_fully_shard refuses DistributedDataParallel's models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import libcst as cst

from fsdp_migrate.source.parts_of_objects import methods_of
from fsdp_migrate.source.python.accelerators import method_that_shards
from fsdp_migrate.source.python.branches import leaves
from fsdp_migrate.source.python.last_values import last_value, was_run
from fsdp_migrate.source.python.loops import binds, loops_around
from fsdp_migrate.source.python.nodes import argument_of, dotted, placed_parameters, text_of
from fsdp_migrate.source.python.wrappers import AROUND_MODEL, DDP, SAME_MODEL


if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from fsdp_migrate.source.python.text import Source


_DEEPEST = 4
_DDP = frozenset(each for each in DDP if each.endswith(".DistributedDataParallel"))
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


def wrapped_by_others(source: Source, calls: Collection[cst.Call]) -> dict[cst.Call, bool]:
    """Return the calls around what DistributedDataParallel or Accelerate has wrapped, and if the latter has.

    Args:
        source: The source.
        calls: Its calls that make FSDP1's models.
    """
    others = {call: source.index.qualified(call.func) & _DDP for call in source.calls}
    by_ddp = {call for call, names in others.items() if names}
    prepared = {call for call in source.calls if _is_prepared(source, call)}
    found: dict[cst.Call, bool] = {}
    for call in calls if by_ddp or prepared else ():
        model = argument_of(call, 0, {"module"})
        made = set(_made_by(source, model, by_ddp | prepared, call, 0)) if model is not None else set()
        # `DDP(net) if ddp else net`: it may be the model itself that comes here.
        sure = {each for each in made if not _is_chosen(source, each)}
        if sure:
            found[call] = sure <= prepared
    return found


def _is_prepared(source: Source, call: cst.Call) -> bool:
    named = {each.keyword.value for each in call.args if each.keyword is not None}
    return bool(method_that_shards(source.index, call.func)) and "evaluation_mode" not in named


def _is_chosen(source: Source, call: cst.Call) -> bool:
    for above in source.index.ancestors(call):
        if isinstance(above, cst.BaseStatement):
            return False
        if isinstance(above, (cst.BooleanOperation, cst.IfExp)):
            return True
    return False


class _Site(NamedTuple):
    """A place where a model is wrapped."""

    call: cst.Call
    model: cst.BaseExpression
    made: cst.Call
    """The call of FSDP's class that does it: this one, or the one in the function that is called here."""


def nested_by_functions(source: Source, calls: Collection[cst.Call]) -> set[cst.Call]:
    """Return the calls in functions that wrap what they are given, first parts of a model, then the whole.

    Also where other files call these functions so.

    Args:
        source: The source.
        calls: Its calls that make FSDP1's models.
    """
    wrapped = ((call, argument_of(call, 0, {"module"})) for call in calls)
    direct = [_Site(call, model, call) for call, model in wrapped if model is not None]
    sites = list(direct)
    for _ in range(_DEEPEST):
        direct = [one for each in direct for one in _by_callers(source, each)]
        sites += direct
    told = source.links.nested
    found = {call for call in calls if source.position(call)[0] in told} if told else set[cst.Call]()
    if len(sites) == len(calls):
        return found
    for whole in sites:
        text = text_of(_itself(source, whole.model))
        home = source.index.function(whole.call)
        for part in sites:
            is_direct = part.call is part.made and whole.call is whole.made
            if part is whole or is_direct or source.index.function(part.call) is not home:
                continue
            below = (f"{text}.", f"{text}[")
            is_part = any(each.startswith(below) for each in _places(source, part, 0))
            if is_part and not source.index.excludes(part.call, whole.call):
                found |= {part.made, whole.made}
    return found


def _by_callers(source: Source, site: _Site) -> Iterator[_Site]:
    """Yield the calls of the function around a place, where that wraps and returns what it is given."""
    model, function = _itself(source, site.model), source.index.function(site.call)
    names = [each.name.value for each in placed_parameters(function)] if function is not None else []
    if function is None or not isinstance(model, cst.Name) or model.value not in names:
        return
    if site.call not in set(_given_by(source, function, {site.call}, 0)):
        return
    name, place = function.name.value, names.index(model.value)
    is_method = names[0] in {"cls", "self"}
    for call in source.calls:
        func = call.func
        last = func.attr.value if isinstance(func, cst.Attribute) else dotted(func)
        called = (*source.models.guards.functions(func), *methods_of(source, func)) if last == name else ()
        given = argument_of(call, place - is_method, {model.value}) if function in called else None
        if given is not None:
            yield _Site(call, given, site.made)


def _places(source: Source, site: _Site, depth: int) -> Iterator[str]:
    """Yield where a wrapped part comes from, and where it is put: ``net.blocks``, of a loop over them."""
    above: cst.CSTNode = site.call
    while not isinstance(above, (cst.Assign, cst.BaseStatement)):
        above = source.index.parents[above]
        func = above.func if isinstance(above, cst.Call) else None
        if isinstance(above, cst.Call) and func is not None and dotted(func) == "setattr" and above.args:
            yield f"{text_of(above.args[0].value)}."
    if isinstance(above, cst.Assign):
        yield from (text_of(each.target) for each in above.targets)
    yield from _origins(source, _itself(source, site.model), depth)


def _origins(source: Source, node: cst.BaseExpression, depth: int) -> Iterator[str]:
    yield text_of(node)
    root = node
    while isinstance(root, (cst.Attribute, cst.Call, cst.Subscript)):
        if (
            isinstance(root, cst.Call)
            and dotted(root.func) in {"enumerate", "list", "reversed"}
            and root.args
        ):
            root = root.args[0].value
            yield text_of(root)
            continue
        root = root.func if isinstance(root, cst.Call) else root.value
    if depth > _DEEPEST or not isinstance(root, cst.Name) or root not in source.index.scopes:
        return
    loops = [loop for loop in loops_around(source.index, root) if binds(loop, root.value)]
    for loop in loops:
        yield from _origins(source, loop.iter, depth + 1)
    value = None if loops else last_value(source.index, root)
    if isinstance(value, (cst.Attribute, cst.Subscript)):
        yield from _origins(source, value, depth + 1)


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
        for target, given in _last_given(source, value, calls):
            yield from (
                each
                for each in _made_by(source, given, calls, place, depth + 1)
                if _both_run(source, target, value)
            )


def _last_given(
    source: Source, name: cst.Name | cst.Attribute, calls: Collection[cst.Call]
) -> list[tuple[cst.CSTNode, cst.BaseExpression]]:
    """Return what the same function gives to a name above a place, down from the last that always runs."""
    order, above = source.index.order, set(source.index.ancestors(name))
    function = source.index.function(name)
    given = [
        (target, value)
        for target, value in _bindings(source, name, calls)
        if value not in above and source.index.function(target) is function and order[target] < order[name]
    ]
    given.sort(key=lambda each: order[each[0]])
    sure = [count for count, (target, _) in enumerate(given) if was_run(source.index, target, name)]
    last = given[sure[-1] :] if sure else given
    return [(target, value) for target, value in last if value is not None]


def _bindings(
    source: Source, name: cst.Name | cst.Attribute, calls: Collection[cst.Call]
) -> Iterator[tuple[cst.CSTNode, cst.BaseExpression | None]]:
    if isinstance(name, cst.Name):
        bindings = source.index.scopes[name].lookup(name.value) if name in source.index.scopes else ()
        # What gives several things at once has made each: `model, opt = accelerator.prepare(model, opt)`.
        yield from (
            (each.node, each.value if each.index is None or each.value in calls else None)
            for each in bindings
        )
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
