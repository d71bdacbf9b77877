"""Optimizers that a function makes of the model it is given: of a plain model, no sharded one's."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from fsdp_migrate.source.call_arguments import given_by
from fsdp_migrate.source.project import dotted
from fsdp_migrate.source.python.argument_places import parameters_of
from fsdp_migrate.source.python.held import attribute, has_model, tensors, whole
from fsdp_migrate.source.python.optimizers import has_groups
from fsdp_migrate.source.python.walked import walked


if TYPE_CHECKING:
    from fsdp_migrate.source.project import Definition, Place
    from fsdp_migrate.source.project_kinds import ProjectKinds


_OF_OPTIMIZERS = (attribute("param_groups"), attribute("state"))


def of_others(
    known: ProjectKinds, found: set[str], call: ast.Call, definition: Definition, place: Place
) -> set[str]:
    """Return what a call gives of an optimizer that the function makes of models which other calls give it.

    ``create_optimizer(model)``, where ``model`` is an object that the project makes here, and shards nowhere.
    """
    node = definition.node
    if not has_groups(found) or isinstance(node, ast.ClassDef) or definition.owner is not None:
        return set()
    names = [each.arg for each in parameters_of(node)]
    for name in names:
        known.ask((definition.key, name))
    models = [each for each in names if has_model(known.facts.get((definition.key, each), ()))]
    given = [given_by(definition, each, call) for each in models]
    is_plain = bool(given) and all(each is not None and _is_plain(known, each, place) for each in given)
    return {kind for kind in found if kind.startswith(_OF_OPTIMIZERS)} if is_plain else set()


def _is_plain(known: ProjectKinds, node: ast.expr, place: Place) -> bool:
    """Tell whether an expression is an object of a class that holds no sharded model, and no model itself."""
    kinds = known.kinds(node, place)
    owners = [owner for owner, _ in known.objects_in(kinds)]
    if has_model(kinds) or tensors(kinds):
        return False
    if whole(kinds) == {"ddp"} or _is_torchs(known, node, place):
        return True
    if not owners:
        return False
    keys = {owner.key for owner in owners}
    for key in keys:
        known.ask(key)
    return not any(key in keys and has_model(those) for (key, _), those in known.facts.items())


def _is_torchs(known: ProjectKinds, node: ast.expr, place: Place) -> bool:
    """Tell whether each value that a name has in its function is a module of torch's: ``nn.Linear()``."""
    function = known.project.node(place.module, place.scope) or place.module.tree
    name = dotted(node)
    given = [
        each.value
        for each in walked(function)
        if isinstance(each, ast.Assign) and name in [dotted(target) for target in each.targets]
    ]
    made = [each.func for each in given if isinstance(each, ast.Call)]
    names = [known.project.qualified(dotted(func) or "", place) for func in made]
    return len(made) == len(given) > 0 and all(each.startswith("torch.nn.") for each in names)
