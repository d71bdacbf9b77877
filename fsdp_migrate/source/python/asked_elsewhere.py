"""Names that another method of the same class asks to be FSDP1's, by what both are bound to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.nodes import dotted, model_argument, text_of, walk_for


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.model_kinds import ModelKinds
    from fsdp_migrate.source.python.scopes import Index


def is_asked_elsewhere(models: ModelKinds, node: cst.BaseExpression) -> bool:
    """Tell whether the same class asks if another name for the same is FSDP1's, or gives it to its functions.

    ``part = get_part(self.model, name)`` in one method, and ``isinstance(part, FSDP)`` in another.
    """
    value = _origin(models.index, node)
    owner = models.index.class_of(node)
    return value is not None and owner is not None and value in _asked_origins(models, owner)


def _asked_origins(models: ModelKinds, owner: cst.ClassDef) -> Iterator[str]:
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
