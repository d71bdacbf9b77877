"""What is given to FSDP1's functions as a model: that shows it to be sharded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.python.last_values import last_value, stands_for
from fsdp_migrate.source.python.nodes import dotted, model_argument, text_of, walk_for


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.guards import Guards
    from fsdp_migrate.source.python.models import Models
    from fsdp_migrate.source.python.scopes import Index


_MAX_DEPTH = 2


def is_asked(models: Models, node: cst.CSTNode, depth: int = 0) -> bool:
    """Tell whether the same function asks anywhere if an expression, or its origin, is FSDP1's."""
    if models.is_other_branch(node):
        return False
    index = models.index
    held = stands_for(index, models.guards, node) if isinstance(node, cst.Name) else ()
    if depth < _MAX_DEPTH and any(is_asked(models, each, depth + 1) for each in held):
        return True
    text, function = text_of(node), index.function(node)
    for call in walk_for(function, cst.Call) if function is not None else ():
        if dotted(call.func) == "isinstance" and len(call.args) == 2:
            is_same = text_of(call.args[0].value) == text
            if is_same and index.fsdp1(call.args[1].value) == catalog.FSDP:
                return True
    return False


def is_asked_elsewhere(models: Models, node: cst.BaseExpression) -> bool:
    """Tell whether the same class asks if another name for the same is FSDP1's, or gives it to its functions.

    ``part = get_part(self.model, name)`` in one method, and ``isinstance(part, FSDP)`` in another.
    """
    value = _origin(models.index, node)
    owner = models.index.class_of(node)
    return value is not None and owner is not None and value in _asked_origins(models, owner)


def _asked_origins(models: Models, owner: cst.ClassDef) -> Iterator[str]:
    """Yield where names come from that a class asks to be FSDP1's models."""
    for call in walk_for(owner, cst.Call):
        known = (models.index.fsdp1(call.func) or "").removeprefix(f"{catalog.FSDP}.")
        place = catalog.MODEL_FUNCTIONS.get(known)
        model = model_argument(call, place) if place is not None and call.args else None
        asked = [model] if model is not None else []
        if known == "optim_state_dict_to_load":  # until torch 2.0 its first argument was the state
            asked = [arg.value for arg in call.args[:2]]
        if dotted(call.func) == "isinstance" and len(call.args) == 2:
            asked = [call.args[0].value] if models.index.fsdp1(call.args[1].value) == catalog.FSDP else []
        yield from (origin for each in asked if (origin := _origin(models.index, each)) is not None)


def _origin(index: Index, node: cst.BaseExpression) -> str | None:
    """Return the call that gave a name its value, without ``.module`` in what it is given."""
    value = last_value(index, node) if isinstance(node, cst.Name) and node in index.scopes else None
    return text_of(value).replace(".module", "") if isinstance(value, cst.Call) and value.args else None


def given_as_models(index: Index, guards: Guards) -> Iterator[tuple[cst.BaseExpression, cst.Call]]:
    """Yield what is given to FSDP1's functions as a model, with the call: it is sharded in all of its scope.

    What stands below a check or a switch of FSDP's says so of its branch alone.
    """
    for node in index.by_kind.get(cst.Call, ()):
        assert isinstance(node, cst.Call)
        known = (index.fsdp1(node.func) or "").removeprefix(f"{catalog.FSDP}.")
        if known not in catalog.MODEL_FUNCTIONS or not node.args:
            continue
        model = model_argument(node, catalog.MODEL_FUNCTIONS[known])
        if model is not None and not any("fsdp" in text_of(test).lower() for test, _ in guards.facts(node)):
            yield model, node
