"""What is made of a model's parameters: lists of them, and optimizers, before the model is sharded."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.always_bound import is_always_bound, runs_before_too
from fsdp_migrate.source.python.containers import pairs
from fsdp_migrate.source.python.nodes import dotted, last_name, text_of, walk_for
from fsdp_migrate.source.python.parameters import is_torchs_optimizer, model_of


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


_OPTIMIZERS = ("adam", "adamw", "sgd", "optimizer", "lion", "adafactor", "adagrad")


def given_before(source: Source, call: cst.Call, model: str) -> list[str]:
    """Return the optimizers that the same function made of the model's parameters before it wraps it.

    FSDP1 left parameters that such an optimizer holds in place under ``use_orig_params``. FSDP2 replaces
    them, and ``prepare_fully_shard`` points the optimizers that it is told of at the new ones.
    """
    function = source.index.function(call)
    names: list[str] = []
    for assign in source.assignments:
        if source.position(assign) >= source.position(call):
            break
        if source.index.function(assign) is not function:
            continue
        if call in set(walk_for(assign, cst.Call)):
            break  # what is made beside the wrapping has no name above it
        for target, value in _bound(assign):
            if isinstance(value, cst.Call) and target in {text_of(arg.value) for arg in value.args}:
                continue  # it is wrapped, not made: `model, optimizer = amp.initialize(model, optimizer)`
            if source.index.excludes(assign, call):
                continue
            if target in names:
                names.remove(target)
            if not _is_sharded_above(source, assign, model) and _is_made_of(source, value, target, model):
                names.append(target)
    names += [each for each in _given_groups(source, call, model) if each not in names]
    # Where a branch alone makes one, the name may have no value when the model is wrapped.
    return [name for name in names if is_always_bound(source, name, call)]


def made_beside(source: Source, call: cst.Call, model: str) -> list[cst.Call]:
    """Return the optimizers that the statement of a wrapping makes of the model's parameters just before it.

    ``optimizer, model = SGD(net.parameters()), FSDP(net)``: Python makes the optimizer first.
    """
    index, around = source.index, {call, *source.index.ancestors(call)}
    line = next((each for each in index.ancestors(call) if isinstance(each, cst.BaseSmallStatement)), None)
    before = (
        (each for each in walk_for(line, cst.Call) if index.order[each] < index.order[call]) if line else ()
    )
    return [
        each
        for each in before
        if each not in around and not index.excludes(each, call) and holds_parameters(source, each, model)
    ]


def _given_groups(source: Source, call: cst.Call, model: str) -> Iterator[str]:
    """Yield what is given parameters as a group before a call: ``optimizer.add_param_group(...)``."""
    function, wanted = source.index.function(call), {f"{model}.parameters", f"{model}.named_parameters"}
    for each in source.calls:
        func = each.func
        if not isinstance(func, cst.Attribute) or func.attr.value != "add_param_group":
            continue
        is_above = source.position(each) < source.position(call) and source.index.function(each) is function
        asked = (dotted(inner.func) for arg in each.args for inner in walk_for(arg.value, cst.Call))
        if is_above and not source.index.excludes(each, call) and any(name in wanted for name in asked):
            yield dotted(func.value) or ""


@functools.lru_cache(maxsize=1)
def _constructors(source: Source) -> list[cst.Call]:
    """Return the calls that shard models by their class; each assignment before one asks for them."""
    return [call for call in source.calls if source.models.is_constructor(call.func)]


def _is_sharded_above(source: Source, assign: cst.Assign, model: str) -> bool:
    """Tell whether a model was sharded before an assignment runs, whose optimizer holds what it has since."""
    around = {assign, *source.index.ancestors(assign)}
    function = source.index.function(assign)
    for call in _constructors(source):
        if source.index.function(call) is not function:
            continue
        statement = source.index.statement(call)
        target = source.index.parents[call]
        named = _targets(target) if isinstance(target, cst.Assign) and len(target.targets) == 1 else []
        is_above = source.position(call) < source.position(assign)
        if not is_above or model not in named:
            continue
        if source.index.parents[statement] in around or runs_before_too(source, call, assign):
            return True
    return False


def assigned_before(source: Source, call: cst.Call, names: list[str]) -> Iterator[cst.Assign]:
    """Yield the assignments, in the function of a call and before it, that give some names their values."""
    function = source.index.function(call)
    for assign in source.assignments:
        if source.position(assign) >= source.position(call):
            return
        if source.index.function(assign) is function and any(each in names for each in _targets(assign)):
            yield assign


def _targets(assign: cst.Assign) -> list[str]:
    target = assign.targets[0].target
    parts = [element.value for element in target.elements] if isinstance(target, cst.Tuple) else [target]
    return [name for part in parts if (name := dotted(part)) is not None]


def _bound(assign: cst.Assign) -> Iterator[tuple[str, cst.BaseExpression]]:
    """Yield the names that an assignment gives values, with these: a tuple's whole where it is not seen."""
    left: list[tuple[cst.BaseExpression, cst.BaseExpression]] = [(assign.targets[0].target, assign.value)]
    while left:
        target, value = left.pop(0)
        each = pairs(target, value)
        if isinstance(target, (cst.List, cst.Tuple)) and each == [(target, value)]:
            yield from ((name, value) for part in target.elements if (name := dotted(part.value)) is not None)
        elif isinstance(target, (cst.List, cst.Tuple)):
            left = [*each, *left]
        elif (name := dotted(target)) is not None:
            yield name, value


def _is_made_of(source: Source, value: cst.BaseExpression, target: str, model: str) -> bool:
    """Tell whether a name is given an optimizer of a model's parameters, or one of two of them."""
    if isinstance(value, cst.IfExp):
        return any(_is_made_of(source, each, target, model) for each in (value.body, value.orelse))
    return holds_parameters(source, value, model) or _may_hold_parameters(source, value, target, model)


def _may_hold_parameters(source: Source, value: cst.BaseExpression, target: str, model: str) -> bool:
    """Tell whether a call that knows the model made an optimizer, as far as names tell.

    ``prepare_fully_shard`` refuses what is none; an optimizer that it is not told of would train nothing.
    """
    last = target.rpartition(".")[2].lower()
    if not isinstance(value, cst.Call) or not ("optim" in last or last == "opt" or last.endswith("_opt")):
        return False
    asked = isinstance(value.func, cst.Attribute) and text_of(value.func.value) == model
    return asked or any(text_of(arg.value) == model for arg in value.args) or _is_given(source, value, model)


def holds_parameters(source: Source, value: cst.BaseExpression, model: str) -> bool:
    """Tell whether a call makes an optimizer of a model's parameters."""
    if not isinstance(value, cst.Call):
        return False
    name = last_name(value.func)
    is_torchs = any(map(is_torchs_optimizer, source.index.qualified(value.func)))
    is_one = is_torchs or name.lower().endswith(_OPTIMIZERS)
    if not is_one and not _is_own_optimizer(source, value.func):
        return False
    wanted = {f"{model}.parameters", f"{model}.named_parameters"}
    if any(dotted(inner.func) in wanted for inner in walk_for(value, cst.Call)):
        return True
    return _is_given(source, value, model)


def _is_given(source: Source, call: cst.Call, model: str) -> bool:
    """Tell whether a call is given the parameters of a model, in one form or another."""
    found = (model_of(source.index, arg.value) for arg in call.args)
    return any(each is not None and text_of(each) == model for each in found)


def _is_own_optimizer(source: Source, func: cst.BaseExpression) -> bool:
    """Tell whether a call makes an optimizer by a class of this source that derives from torch's."""
    if not isinstance(func, cst.Name) or func not in source.index.scopes:
        return False
    for binding in source.index.scopes[func].lookup(func.value):
        for base in binding.node.bases if isinstance(binding.node, cst.ClassDef) else ():
            if any(map(is_torchs_optimizer, source.index.qualified(base.value))):
                return True
    return False
