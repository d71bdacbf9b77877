"""Which expressions are parameters of a sharded model, also by what functions of other files give of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.held import ARGUMENT, WRAPS, has_model, put, tensors
from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.links import OBJECT
from fsdp_migrate.source.python.makers import given_here
from fsdp_migrate.source.python.nodes import argument_of, dotted
from fsdp_migrate.source.python.optimizers import OF_A_MODEL, has_groups
from fsdp_migrate.source.python.own_parts import holds_models
from fsdp_migrate.source.python.parameters import model_of
from fsdp_migrate.source.python.written_names import written_names


if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from fsdp_migrate.source.python.model_kinds import ModelKinds


_ALL = -1


def told_model(models: ModelKinds, node: cst.BaseExpression) -> cst.BaseExpression | None:
    """Return the model whose parameters a call gives: ``trainable(model)``, ``model.trainable_weights()``."""
    is_told = isinstance(node, cst.Call) and bool(models.links.gives_parameters)
    told = _told(models, cst.ensure_type(node, cst.Call)) if is_told else ()
    return next((model for part, model in told if part == _ALL), None)


def kinds_of_parameters(models: ModelKinds, node: cst.BaseExpression) -> set[str]:
    """Return that an expression holds parameters of a sharded model, if it does."""
    model = asked = model_of(models.index, node) or told_model(models, node)
    while model is not None:
        kinds = models.kinds(model)
        # A module with a sharded one in it has its parameters as well, but another part of it has not.
        is_holder = model is asked and holds_models(models, model, kinds)
        if kinds & {"fsdp", WRAPS} or is_holder:
            return {"params"}
        model = models.sharded_with(model)
    return set()


def given_apart(models: ModelKinds, call: cst.Call) -> set[str]:
    """Return what a call gives that gives parameters in parts: ``decay, rest = split(model)``."""
    found: set[str] = set()
    for part, model in _told(models, call) if models.links.gives_parameters else ():
        is_sharded = part != _ALL and "fsdp" in models.kinds(model)
        found |= put(str(part), {"params"}) if is_sharded else set()
    return found


def given_by_functions(models: ModelKinds, call: cst.Call) -> set[str]:
    """Return what functions of this file and of others give: what they are given, where they give it back."""
    gives = models.links.gives
    names = written_names(models.index, call.func) & gives.keys() if gives else ()
    found, is_back = set[str](), False
    for name in names:
        back = next((kind for kind in gives[name] if kind.startswith(ARGUMENT)), None)
        known: set[str] = set()
        if back is not None:
            place, _, parameter = back.removeprefix(ARGUMENT).partition(":")
            given = argument_of(call, int(place), {parameter})
            known = models.kinds(given) if given is not None else set()
        is_back = is_back or bool(known)
        found |= known or without_others(models, call, gives[name] - {back or ""})
    return found if is_back else found | _without_groups_of_others(models, call)


def _without_groups_of_others(models: ModelKinds, call: cst.Call) -> set[str]:
    """Return what a function here gives: no optimizer of a sharded model, where it gets a plain one.

    ``create_optimizer(model)`` gives that of the model, which other calls shard before.
    """
    found = given_here(models, call.func)
    values = [arg.value for arg in call.args if not arg.star]
    if not has_groups(found) or len(values) != len(call.args):
        return found
    if not any(isinstance(each, cst.Name) and _is_made_plain(models, each) for each in values):
        return found
    every = [models.kinds(each) for each in values]
    is_its = any(has_model(each) or "params" in each or tensors(each) for each in every)
    return found if is_its else found - OF_A_MODEL


def gives_others(models: ModelKinds, call: cst.Call) -> bool:
    """Tell whether a function here gives the optimizer of a sharded model to other calls alone."""
    return has_groups(given_here(models, call.func)) and not has_groups(models.kinds(call))


def _is_made_plain(models: ModelKinds, name: cst.Name) -> bool:
    """Tell whether a name is given a module of torch's here: ``net = nn.Linear(4, 4)``."""
    value = last_value(models.index, name) if name in models.index.scopes else None
    made = models.index.qualified(value.func) if isinstance(value, cst.Call) else set()
    return bool(made) and all(each.startswith("torch.nn.") for each in made)


def without_others(models: ModelKinds, call: cst.Call, gives: Collection[str]) -> set[str]:
    """Return what a call gives: no gradients of another model, where it gives none itself."""
    every = [models.kinds(arg.value) for arg in call.args]
    is_its = not every or any(has_model(each) or "params" in each or tensors(each) for each in every)
    return set(gives) if is_its else set(gives) - tensors(gives)


def _told(models: ModelKinds, call: cst.Call) -> Iterator[tuple[int, cst.BaseExpression]]:
    """Yield which part of what a call gives holds parameters, and the model whose they are."""
    names = written_names(models.index, call.func) | {dotted(call.func) or ""}
    for name in names:
        for part, _, number, argument in models.links.gives_parameters.get(name, ()):
            if number == OBJECT:
                model = call.func.value if isinstance(call.func, cst.Attribute) else None
            else:
                model = argument_of(call, number, {argument}) if number >= 0 else None
            if model is not None:
                yield part, model
