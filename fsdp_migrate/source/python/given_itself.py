"""Assignments that leave a name its model: ``net = net.to(0)``, ``self.net = torch.compile(self.net)``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.nodes import dotted
from fsdp_migrate.source.python.wrappers import AROUND_MODEL, SAME_MODEL


if TYPE_CHECKING:
    from fsdp_migrate.source.python.scopes import Index


def gives_itself(index: Index, target: cst.BaseExpression, value: cst.BaseExpression) -> bool:
    """Tell whether what is assigned to a name is what it holds already, of the same kind in any case."""
    text = dotted(target)
    return text is not None and isinstance(value, cst.Call) and _holds(index, value) == text


def _holds(index: Index, value: cst.BaseExpression) -> str | None:
    """Return the name of what such calls are asked of, or given."""
    while isinstance(value, cst.Call):
        place = next((AROUND_MODEL[n] for n in index.qualified(value.func) if n in AROUND_MODEL), None)
        if place is not None:
            if len(value.args) <= place or value.args[place].star:
                return None
            value = value.args[place].value
        elif isinstance(value.func, cst.Attribute) and value.func.attr.value in SAME_MODEL:
            value = value.func.value
        else:
            return None
    return dotted(value)
