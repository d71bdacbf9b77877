"""What calls give where the switch is off by which a model is sharded: in a branch, or to a chosen function.

``save = save_sharded if on else save_plain``: what ``save(model)`` gives to the second is plain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.last_values import renamed_as
from fsdp_migrate.source.python.made_before import has_plain_model
from fsdp_migrate.source.python.wrapped_in_place import given_for


if TYPE_CHECKING:
    from fsdp_migrate.source.python.model_kinds import ModelKinds


_DEEPEST = 4


def gives_plain(
    models: ModelKinds, call: cst.Call, function: cst.FunctionDef, value: cst.BaseExpression, depth: int = 0
) -> bool:
    """Tell whether a model, or an optimizer, that a call gives to a function is plain where that is run."""
    places = _chosen_at(models, call, function)
    is_chosen = bool(places) and all(is_plain(models, value, place) for place in places)
    is_so = is_chosen or is_plain(models, value, value)
    return is_so or (depth < _DEEPEST and is_given_plain(models, value, depth + 1))


def is_plain(models: ModelKinds, value: cst.BaseExpression, place: cst.CSTNode) -> bool:
    """Tell whether a model that the switch decides on is plain at a place, or that of an optimizer."""
    return models.is_plain_at(value, place) or has_plain_model(models, models.optimizers, value, place)


def is_given_plain(models: ModelKinds, node: cst.CSTNode, depth: int = 0) -> bool:
    """Tell whether it is a parameter to which every call of this source gives what is plain there."""
    function = models.index.function(node)
    calls = models.guards.calls.get(function, ()) if function is not None else ()
    if function is None or not calls or not isinstance(node, cst.Name) or node not in models.index.scopes:
        return False
    if _is_handed_on(models, function):
        return False
    scope = models.index.scopes[node].find(node.value)
    if (
        scope is None
        or scope.node is not function
        or [e.kind for e in scope.bindings[node.value]] != ["param"]
    ):
        return False
    given = [(call, given_for(call, function, node.value)) for call in calls]
    return all(
        value is not None and gives_plain(models, call, function, value, depth) for call, value in given
    )


def _is_handed_on(models: ModelKinds, function: cst.FunctionDef) -> bool:
    """Tell whether something is given a function, and may call it with any model: ``runner.run(save)``."""
    index = models.index
    names = index.names_given.get(function.name.value, ())
    bound = (index.scopes[each].lookup(each.value) for each in names)
    return any(binding.node is function for bindings in bound for binding in bindings)


def _chosen_at(models: ModelKinds, call: cst.Call, function: cst.FunctionDef) -> list[cst.BaseExpression]:
    """Return where a function is given the name by which a call runs it."""
    if not isinstance(call.func, cst.Name):
        return []
    every = renamed_as(models.index, call.func, models.guards.functions)
    return [each for each in every if function in models.guards.functions(each)]
