"""``.module`` of a model of which nothing shows whether it is the sharded one: FSDP2's has none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.framework_words import is_in_a_module
from fsdp_migrate.source.method_calls import is_tried_alone, was_asked_for
from fsdp_migrate.source.python.unknown_models import is_model, last_word


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


def of_wrappers(source: Source) -> Iterator[tuple[cst.Attribute, cst.BaseExpression]]:
    """Yield each ``model.module`` that is read, with the model; not where something asks for it first."""
    if source.links.keeps_module:
        return
    for node in source.attributes:
        if node.attr.value != "module" or not is_model(last_word(node.value)) or _is_set(source, node):
            continue
        is_asked = was_asked_for(source, node) or is_tried_alone(source, node)
        if not is_asked and not is_in_a_module(source, node.value):
            yield node, node.value


def _is_set(source: Source, node: cst.Attribute) -> bool:
    return isinstance(source.index.parents[node], (cst.AnnAssign, cst.AssignTarget, cst.Del))
