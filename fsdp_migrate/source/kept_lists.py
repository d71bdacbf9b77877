"""What is made of a model's parameters before a framework shards it, and is used after that.

FSDP1 left the parameters in place under ``use_orig_params``. FSDP2 puts new ones into the model; Accelerate
exchanges those of an optimizer that is prepared with it, and of nothing else.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.assigned_names import Made, assigned, made_by
from fsdp_migrate.source.python.accelerate_models import prepared
from fsdp_migrate.source.python.class_order import INIT, runs_first
from fsdp_migrate.source.python.filled_lists import filled_from, is_made_empty
from fsdp_migrate.source.python.frameworks import by_whom
from fsdp_migrate.source.python.nodes import (
    argument_of,
    bound_in,
    dotted,
    given_by_name,
    last_name,
    targets_of,
    text_of,
    walk,
    walk_for,
)
from fsdp_migrate.source.python.parameter_lists import is_only_counted, named_as_parameters, shares
from fsdp_migrate.source.python.parameters import is_torchs_optimizer
from fsdp_migrate.source.python.returned_parameters import returned_shares
from fsdp_migrate.source.python.starred import added_to, given_to
from fsdp_migrate.source.python.written_names import written_names


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fsdp_migrate.source.python.text import Source


_OPTIMIZER: Final = re.compile(r"optim|(^|_)opt($|_)|^ada|^sgd|^lion", re.IGNORECASE)
_CLIPS: Final = re.compile(r"^clip_grad|norm|^_foreach_|^unscale")
EARLIER: Final = re.compile(r"^(get|create|make|build|configure|init|_init|setup|_setup|prepare)(_|$)")
"""Methods that may run before the sharding, by their names."""
_VIEWS: Final = frozenset({"items", "values"})
_PREPARES: Final = frozenset({"prepare", "prepare_model", "setup", "setup_module", "setup_optimizers"})


@dataclass(frozen=True)
class Sharding:
    """A call by which a framework shards models."""

    call: cst.Call
    by: str
    models: tuple[str, ...]
    """What they are called before it."""


def kept_in_functions(source: Source) -> Iterator[tuple[cst.CSTNode, str]]:
    """Yield what holds parameters from before a framework shards, in one function, and by which framework."""
    for sharding in shardings(source):
        yield from ((each, sharding.by) for each in kept_before(source, sharding))
        if sharding.by == "transformers":
            yield from ((each, sharding.by) for each in _given_to_callbacks(source, sharding))
    for call in source.calls if source.links.takes_lists else ():
        yield from _handed_to(source, call)


def _handed_to(source: Source, call: cst.Call) -> Iterator[tuple[cst.CSTNode, str]]:
    """Yield the lists that a call gives to what shards their model itself, or the call that has one in it."""
    names = written_names(source.index, call.func) or {dotted(call.func) or ""}
    told = (each for name in names for each in source.links.takes_lists.get(name, ()))
    for place, name, number, argument, by in told:
        model, given = argument_of(call, place, {name}), argument_of(call, number, {argument})
        if model is None or given is None:
            continue
        made = [each for each in made_before(source, call) if each.name == text_of(given)]
        text = text_of(model)
        if any(holds(source, each, text, by) or is_filled(source, each, call, [text]) for each in made):
            yield made[-1].assign, by
        elif any(is_about(source, each.model, text) for each in shares(source.index, given)):
            yield call, by


def kept_before(source: Source, sharding: Sharding) -> Iterator[cst.CSTNode]:
    """Yield the assignments before a call that shards, in its function, of what is used after it as well."""
    for made in (*made_before(source, sharding.call), *_made_globally(source, sharding)):
        is_its = any(holds(source, made, model, sharding.by) for model in sharding.models)
        is_its = is_its or is_filled(source, made, sharding.call, sharding.models)
        if (is_its or _is_stepped(source, made, sharding.call)) and is_used_after(
            source, made, sharding.call
        ):
            yield made.assign


def _made_globally(source: Source, sharding: Sharding) -> Iterator[Made]:
    """Yield what the top level of a file makes, where a function shards a model of that: ``global NET``."""
    index, function = source.index, source.index.function(sharding.call)
    given = [arg.value for arg in sharding.call.args if isinstance(arg.value, cst.Name)]
    bound = [each for name in given if name.value in sharding.models for each in index.bindings_of(name)]
    if function is not None and any(index.function(each.node) is None for each in bound):
        for assign in assigned(source):
            if index.function(assign) is None and index.class_of(assign) is None:
                yield from made_by(assign)


def filled_with(source: Source, made: Made) -> Iterator[cst.BaseExpression]:
    """Yield the models whose parameters loops put into what an assignment makes empty."""
    if not isinstance(made.assign, cst.Expr) and not made.is_one_of and is_made_empty(made.value):
        yield from filled_from(source.index, made.assign, made.name)


def is_filled(source: Source, made: Made, call: cst.Call, models: Iterable[str]) -> bool:
    """Tell whether a loop before a call that shards fills a list with the parameters of one of its models."""
    order = source.index.order
    before = [each for each in filled_with(source, made) if order[each] < order[call]]
    return any(is_about(source, found, model) for found in before for model in models)


def comes_with(made: Made, model: str) -> bool:
    """Tell whether an optimizer comes in one tuple with a model: ``model, optimizer = set_up(cfg)``."""
    beside = (each.name for each in made_by(made.assign))
    last = made.name.rpartition(".")[2]
    return made.is_one_of and _OPTIMIZER.search(last) is not None and model in beside


def _is_stepped(source: Source, made: Made, call: cst.Call) -> bool:
    """Tell whether an optimizer holds a list that is prepared by a call: what is sharded has these then."""
    if not shares(source.index, made.value):
        return False
    given = names_given(source, call)
    makes = (each.value for each in made_before(source, call) if each.name in given and not each.is_one_of)
    args = (arg.value for value in makes if isinstance(value, cst.Call) for arg in value.args)
    return any(isinstance(each, cst.Name) and each.value == made.name for arg in args for each in walk(arg))


def names_given(source: Source, call: cst.Call) -> set[str]:
    """Return the names of what a call is given, also by a list: ``prepare(*things)``."""
    found = {text_of(arg.value) for arg in call.args if not arg.star}
    if any(arg.star for arg in call.args):
        found |= {*given_to(source.index, call)}.union(*(names for _, names in added_to(source.index, call)))
    return found


def made_before(source: Source, call: cst.Call) -> Iterator[Made]:
    """Yield what the assignments give values that stand before a call in its function."""
    function, order = source.index.function(call), source.index.order
    for assign in assigned(source):
        if source.index.function(assign) is not function or order[assign] >= order[call]:
            continue
        if call not in set(walk_for(assign, cst.Call)) and not source.index.excludes(assign, call):
            yield from made_by(assign)
    for made in _filled_by_methods(source) if source.links.keeps_parameters else ():
        is_before = order[made.assign] < order[call] and source.index.function(made.assign) is function
        if is_before and not source.index.excludes(made.assign, call):
            yield made


def _filled_by_methods(source: Source) -> Iterator[Made]:
    """Yield the objects that a method of theirs gives parameters to keep: ``ema.reset(net)``."""
    for node in source.index.by_kind.get(cst.Expr, ()):
        line = cst.ensure_type(node, cst.Expr)
        call = line.value
        if isinstance(call, cst.Call) and isinstance(call.func, cst.Attribute):
            name = dotted(call.func.value)
            keeps = written_names(source.index, call.func) & source.links.keeps_parameters.keys()
            if name is not None and name != "self" and keeps:
                yield Made(line, name, call)


@functools.lru_cache(maxsize=1)
def shardings(source: Source) -> list[Sharding]:
    """Return the calls by which frameworks shard, with the names that models have before."""
    return list(_shardings(source))


def _shardings(source: Source) -> Iterator[Sharding]:
    for call in source.calls:
        kinds = source.models.kinds(call)
        by = by_whom({kind.rpartition(">")[2] for kind in kinds})
        if by and not _is_sharded_already(source, call):
            models = tuple(_models_given(source, call, kinds))
            if models:
                yield Sharding(call, by, models)
        elif not by and (found := _shown_below(source, call)):
            yield Sharding(call, "accelerate", tuple(_models_given(source, call, found)))
    for call, model in source.models.frameworks.trainers.trainings:
        yield Sharding(call, "transformers", (model, f"{text_of(_owner(call))}.model"))


def _shown_below(source: Source, call: cst.Call) -> set[str]:
    """Return what Accelerate's ``prepare`` gives, where FSDP1's functions are given that below."""
    kinds = prepared(source.index, call)
    above = source.index.parents[call]
    targets = [each.target for each in above.targets] if kinds and isinstance(above, cst.Assign) else []
    parts = (walk_for(each, kind) for each in targets for kind in (cst.Name, cst.Attribute))
    is_shown = any(source.models.is_evident(part) for found in parts for part in found)
    return kinds if is_shown else set()


def _owner(call: cst.Call) -> cst.BaseExpression:
    return call.func.value if isinstance(call.func, cst.Attribute) else call.func


def _is_sharded_already(source: Source, call: cst.Call) -> bool:
    """Tell whether a call is given the model sharded: ``accelerator.unwrap_model(model)``."""
    func = call.func
    asked = [func.value] if isinstance(func, cst.Attribute) else []
    return any(source.models.certainty(each) is not None for each in (*asked, *(a.value for a in call.args)))


def _models_given(source: Source, call: cst.Call, kinds: set[str]) -> Iterator[str]:
    """Yield what a call shards of what it is given: by its place, or what has the same name after it."""
    is_starred = any(arg.star for arg in call.args)
    names = [dotted(arg.value) or "" for arg in call.args]
    names = given_to(source.index, call) if is_starred else names
    func = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
    places = {kind.split(">")[0] for kind in kinds if ">" in kind and kind.endswith("fsdp")}
    if func in _PREPARES:
        yield from (
            name
            for place, name in enumerate(names)
            if name and (str(place) in places or ("fsdp" in kinds and place == 0))
        )
        return
    above = source.index.parents[call]
    for assign in [above] if isinstance(above, cst.Assign) else []:
        for each in assign.targets:
            yield from (name for name in _sharded_by_name(each.target, kinds, places) if name in names)


def _sharded_by_name(target: cst.BaseExpression, kinds: set[str], places: set[str]) -> Iterator[str]:
    """Yield the names that an assignment makes sharded models."""
    if isinstance(target, cst.Tuple):
        parts = enumerate(target.elements)
        yield from (dotted(part.value) or "" for place, part in parts if str(place) in places)
    elif "fsdp" in kinds:
        yield dotted(target) or ""


def holds(source: Source, made: Made, model: str, by: str) -> bool:
    """Tell whether a name is given something made of the parameters of a model, or of a part of it."""
    return any(is_about(source, each, model) for each in models_held(source, made, by))


def models_held(source: Source, made: Made, by: str) -> list[cst.BaseExpression]:
    """Return the models, or the parts of them, of whose parameters a name is given something."""
    value = made.value
    found = [] if made.is_one_of else [each.model for each in shares(source.index, value)]
    if not found and not made.is_one_of:
        found = _held_by_object(source, value, by)
    if not found and isinstance(value, (cst.Dict, cst.List, cst.Tuple)) and not made.is_one_of:
        found = [each for part in value.elements for each in _held_by_object(source, part.value, by)]
    found = found or list(returned_shares(source, value, _place(made)))
    found = found or ([] if made.is_one_of else list(_kept_by_object(source, value)))
    named = None if found else named_as_parameters(value, made.name)
    return found if named is None else [named]


def _held_by_object(source: Source, value: cst.BaseExpression, by: str) -> list[cst.BaseExpression]:
    """Return the models whose parameters a call is given, that makes an object which keeps them."""
    if not isinstance(value, cst.Call) or not _is_class(source, value, by):
        return []
    found: list[cst.BaseExpression] = []
    for arg in value.args:
        held = [each.model for each in shares(source.index, arg.value)]
        found += held or returned_shares(source, arg.value)  # `EMA(self.trained_parameters())`
    return found


def _kept_by_object(source: Source, value: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """Yield the models of whose parameters the object keeps some that a call makes: ``EMA(net)``."""
    call = value if isinstance(value, cst.Call) and source.links.keeps_parameters else None
    names = (written_names(source.index, call.func) or {dotted(call.func) or ""}) if call is not None else ()
    for name in names:
        for number, argument in source.links.keeps_parameters.get(name, ()):
            given = argument_of(call, number, {argument}) if call is not None else None
            yield from () if given is None else (given,)


def _place(made: Made) -> tuple[int, int] | None:
    """Return which part of a tuple a name is given, and how many parts that has."""
    for target in targets_of(made.assign) if made.is_one_of else ():
        parts = target.elements if isinstance(target, (cst.Tuple, cst.List)) else ()
        names = [dotted(part.value) for part in parts]
        if made.name in names:
            return names.index(made.name), len(names)
    return None


def _is_class(source: Source, call: cst.Call, by: str) -> bool:
    """Tell whether a call makes an object that keeps parameters.

    Who has an optimizer prepared with its model has the new ones put into it, but not by Fabric's FSDP2.
    """
    name = last_name(call.func)
    if name == "partial":
        return True  # `clip = partial(clip_grad_norm_, list(net.parameters()))`
    if by in {"", "fabric"}:
        return name[:1].isupper()
    known = source.index.qualified(call.func)
    is_optimizer = _OPTIMIZER.search(name) is not None or any(map(is_torchs_optimizer, known))
    return name[:1].isupper() and not is_optimizer


def is_about(source: Source, node: cst.BaseExpression, model: str) -> bool:
    """Tell whether an expression is a model, a part of it, what it is a part of, or what it was made of."""
    text = text_of(node)
    if text == model or text.startswith(f"{model}.") or model.startswith(f"{text}."):
        return True
    # Of an object that was given the model too: `run.net` of `run = Run(net)`.
    made = (
        each
        for assign in source.assignments
        for each in made_by(assign)
        if f"{model}.".startswith(f"{each.name}.") and each.name != "self"
    )
    return any(
        isinstance(each.value, cst.Call)
        and not each.is_one_of
        and text_of(each.value.func).split(".")[-1][:1].isupper()
        and any(text_of(arg.value) == text for arg in each.value.args)
        for each in made
    )


def is_used_after(source: Source, made: Made, call: cst.Call) -> bool:
    """Tell whether a name is used after a call, for more than a count, and with the value from before it."""
    is_named = made.is_one_of or not shares(source.index, made.value)
    is_named = is_named and named_as_parameters(made.value, made.name) is not None
    used = _used_after(source, made, call)
    return any(not is_named or is_taken_for_parameters(source, node) for node in used)


def taken_after(source: Source, made: Made, call: cst.Call) -> Iterator[cst.CSTNode]:
    """Yield where a name is taken for parameters after a call, with the value from before it."""
    used = _used_after(source, made, call)
    yield from (node for node in used if is_taken_for_parameters(source, node))


def _used_after(source: Source, made: Made, call: cst.Call) -> Iterator[cst.CSTNode]:
    index, name = source.index, made.name
    inside = set(map(id, walk(call)))
    if name in names_given(source, call):
        return
    for node in readers(source, made.assign, name):
        if id(node) in inside or is_only_counted(index, node) or not _may_run_after(source, node, call):
            continue
        if index.excludes(node, call) or _is_set_between(source, node, name, call):
            continue
        if isinstance(made.assign, cst.Expr) and _is_filled_anew(source, made.value, node, call):
            continue
        if index.function(node) is index.function(call) or not is_made_anew(source, name, call):
            yield node


def _is_filled_anew(source: Source, fills: cst.BaseExpression, node: cst.CSTNode, call: cst.Call) -> bool:
    """Tell whether an object is given parameters again, by the same method, behind a call that shards."""
    index = source.index
    func = text_of(fills.func) if isinstance(fills, cst.Call) else ""
    again = (
        each for each in source.calls if text_of(each.func) == func and index.order[each] > index.order[call]
    )
    return any(
        index.function(each) is index.function(call)
        and (each in set(index.ancestors(node)) or index.order[each] < index.order[node])
        and not index.excludes(each, node)
        for each in again
    )


def is_made_anew(source: Source, name: str, call: cst.CSTNode) -> bool:
    """Tell whether the function of a call gives a name another value below it, which others then read."""
    index = source.index
    return any(
        made.name == name
        for assign in assigned(source)
        if index.function(assign) is index.function(call) and index.order[assign] > index.order[call]
        if not index.excludes(assign, call) and index.statement(assign) is not index.statement(call)
        for made in made_by(assign)
    )


def _may_run_after(source: Source, node: cst.CSTNode, call: cst.CSTNode) -> bool:
    """Tell whether a place comes after a call: in another function, it may, wherever that stands."""
    index = source.index
    is_below = index.order[node] > index.order[call]
    if index.function(node) is index.function(call):
        return is_below
    if index.function(node) is None:
        return False  # the top level of a file runs before what it defines is called
    first = runs_first(index, node, call)
    if first is not None or is_below:
        return not first
    function = index.function(node)
    is_early = function is None or function.name.value == INIT or EARLIER.search(function.name.value)
    return not is_early and is_taken_for_parameters(source, node)


def _is_set_between(source: Source, node: cst.CSTNode, name: str, call: cst.CSTNode) -> bool:
    """Tell whether a name is given another value behind a call, or by it, and above a place."""
    order, line = source.index.order, source.index.statement(call)
    return any(
        (order[call] < order[each] < order[node] or source.index.statement(each) is line)
        and any(dotted(part) == name for target in each.targets for part in bound_in(target.target))
        and not source.index.excludes(each, call)
        and source.index.function(each) is source.index.function(node)
        and node not in set(walk(each.value))
        for each in source.assignments
    )


def readers(source: Source, assign: cst.CSTNode, name: str) -> Iterator[cst.CSTNode]:
    """Yield where what an assignment sets is read: a name in its function, an attribute in its class."""
    function, owner = source.index.function(assign), source.index.class_of(assign)
    kind = cst.Attribute if "." in name else cst.Name
    for node in source.index.by_kind.get(kind, ()):
        if dotted(node) != name or isinstance(source.index.parents[node], cst.AssignTarget):
            continue
        if isinstance(source.index.parents[node], (cst.Arg,)) and _is_keyword(source, node):
            continue
        is_same = (
            owner is not None and source.index.class_of(node) is owner
            if name.startswith("self.")
            else _is_within(source, node, function)
        )
        if is_same:
            yield node


def _is_keyword(source: Source, node: cst.CSTNode) -> bool:
    above = source.index.parents[node]
    return isinstance(above, cst.Arg) and above.keyword is node


def _is_within(source: Source, node: cst.CSTNode, function: cst.FunctionDef | None) -> bool:
    """Tell whether a place is in a function, or in one within it that does not bind the name itself."""
    here = source.index.function(node)
    if here is function:
        return True
    is_inner = function is None or any(above is function for above in source.index.ancestors(node))
    bound = source.index.bindings_of(node) if isinstance(node, cst.Name) else ()
    return is_inner and bool(bound) and all(source.index.function(each.node) is function for each in bound)


def is_taken_for_parameters(source: Source, node: cst.CSTNode) -> bool:
    """Tell whether a place shows that something holds parameters: it is clipped, or gone through."""
    above = source.index.parents[node]
    while isinstance(above, cst.Attribute) and above.attr.value in _VIEWS:
        above = source.index.parents[source.index.parents[above]]  # of `self.named.items()`
    if isinstance(above, (cst.For, cst.CompFor)):
        return True
    call = source.index.parents[above] if isinstance(above, cst.Arg) else None
    name = last_name(call.func) if isinstance(call, cst.Call) else ""
    return name == "zip" or _CLIPS.search(name) is not None


def _given_to_callbacks(source: Source, sharding: Sharding) -> Iterator[cst.CSTNode]:
    """Yield what a Trainer's callbacks are given of the parameters before it trains."""
    index, function = source.index, source.index.function(sharding.call)
    for call in source.calls:
        if index.function(call) is not function or index.order[call] >= index.order[sharding.call]:
            continue
        named = given_by_name(call, "callbacks")
        is_adding = isinstance(call.func, cst.Attribute) and call.func.attr.value == "add_callback"
        for given in [*named, *(arg.value for arg in call.args if is_adding)]:
            for made in walk_for(given, cst.Call):
                if (dotted(made.func) or "")[:1].isupper() and _is_made_of(source, made, sharding.models):
                    yield made


def _is_made_of(source: Source, call: cst.Call, models: tuple[str, ...]) -> bool:
    held = [each.model for arg in call.args for each in shares(source.index, arg.value)]
    return any(is_about(source, each, model) for each in held for model in models)
