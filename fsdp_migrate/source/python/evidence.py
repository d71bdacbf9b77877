"""What is given to FSDP1's functions as a model: that shows it to be sharded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.python.last_values import stands_for
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
