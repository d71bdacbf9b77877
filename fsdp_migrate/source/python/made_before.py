"""Optimizers that are made above the sharding of what they step, and are asked below it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.python.held import attribute
from fsdp_migrate.source.python.named_anew import is_named_anew
from fsdp_migrate.source.python.nodes import dotted
from fsdp_migrate.source.python.optimizers import OF_A_MODEL, PARAMETERS, is_optimizer, of_optimizer, stepped
from fsdp_migrate.source.python.parameters import model_of


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.model_kinds import ModelKinds
    from fsdp_migrate.source.python.scopes import Index

    Made = dict[str, list[tuple[cst.BaseExpression, cst.Call]]]


_GROUPS: Final = attribute("param_groups")


def optimizers_made(index: Index) -> Made:
    """Return the names that a source binds to what may be an optimizer, with the call that makes it."""
    found: Made = {}
    for node in index.by_kind.get(cst.Assign, ()):
        assign = cst.ensure_type(node, cst.Assign)
        for target in assign.targets if isinstance(assign.value, cst.Call) else ():
            name = dotted(target.target)
            if name is not None and isinstance(assign.value, cst.Call) and _makes_one(assign.value, name):
                found.setdefault(name, []).append((target.target, assign.value))
    return found


def made_before(models: ModelKinds, made: Made, node: cst.Name | cst.Attribute) -> set[str]:
    """Return what an optimizer holds that was made of a plain model, which is sharded at this place."""
    known = made.get(dotted(node) or "", ()) if made else ()
    key = models.key_of(node) if known else None
    for target, call in known:
        is_its = key is not None and models.key_of(target) == key
        if is_its and any(_is_sharded_since(models, each, call, node) for each in _stepped(models, call)):
            return set(OF_A_MODEL)
    return set()


def of_its_model(models: ModelKinds, made: Made, node: cst.Name | cst.Attribute, found: set[str]) -> set[str]:
    """Return what an optimizer holds, without the parameters of a model that is plain at this place."""
    is_one = any(kind.startswith(_GROUPS) for kind in found)
    is_plain = is_one and (has_plain_model(models, made, node, node) or is_named_anew(models, node))
    return found - OF_A_MODEL if is_plain else found


def has_plain_model(models: ModelKinds, made: Made, node: cst.BaseExpression, place: cst.CSTNode) -> bool:
    """Tell whether an optimizer is always made of models that the switch is off for at a place."""
    key, known = models.key_of(node), made.get(dotted(node) or "", ())
    calls = [call for target, call in known if models.key_of(target) == key]
    if key is None or key in models.given or len(calls) < _count_bound(models.index, node):
        return False
    stepped_by = [list(_stepped(models, call)) for call in calls]
    return bool(calls) and all(
        each and all(models.is_plain_at(model, place) for model in each) for each in stepped_by
    )


def _count_bound(index: Index, node: cst.BaseExpression) -> int:
    """Return how many places bind a name, or attribute, to anything."""
    if isinstance(node, cst.Name):
        return len(index.scopes[node].lookup(node.value)) if node in index.scopes else 0
    return len(index.places_set(dotted(node) or ""))


def _makes_one(call: cst.Call, name: str) -> bool:
    """Tell whether a call makes an optimizer, by its class, or by the name that is bound to what it gives."""
    is_class = bool(of_optimizer(dotted(call.func) or "", [{PARAMETERS}]))
    return bool(call.args) and (is_class or is_optimizer(name.rpartition(".")[2].lower()))


def _stepped(models: ModelKinds, call: cst.Call) -> Iterator[cst.BaseExpression]:
    """Yield the models whose parameters a call is given; of a function the models too."""
    for each in stepped(call):
        model = model_of(models.index, each)
        if model is not None:
            yield model
    if not of_optimizer(dotted(call.func) or "", [{PARAMETERS}]):
        yield from (arg.value for arg in call.args if isinstance(arg.value, (cst.Attribute, cst.Name)))


def _is_sharded_since(
    models: ModelKinds, model: cst.BaseExpression, call: cst.Call, node: cst.BaseExpression
) -> bool:
    """Tell whether a model is sharded between a call and a place, or by another function."""
    key, index = models.key_of(model), models.index
    if key is None or key in models.given or models.is_other_branch(node):
        return False
    function, order = index.function(call), index.order
    for place in models.made.get(key, ()):
        is_here = index.function(place) is function
        if is_here and order[place] < order[call]:
            continue  # of what was sharded before others speak
        if index.function(node) is not function:
            return True
        if is_here and order[place] < order[node] and not index.excludes(place, node):
            return True
    return False
