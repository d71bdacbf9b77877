"""The sharded model that an expression is, or is a part of: ``model`` of ``model.module.layers[0]``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.own_parts import holder_of


if TYPE_CHECKING:
    from fsdp_migrate.source.python.text import Source


def whole_of(source: Source, node: cst.BaseExpression) -> cst.BaseExpression | None:
    """Return the sharded model of which an expression is the whole, or a part that is sharded with it."""
    part: cst.BaseExpression | None = None if node in source.models.plain_above else node
    while part is not None and not source.models.is_other_branch(part):
        if source.models.certainty(part) is not None:
            return part
        # `model.layers[0]`
        part = part.value if isinstance(part, cst.Subscript) else holder_of(source.models, part)
    return None
