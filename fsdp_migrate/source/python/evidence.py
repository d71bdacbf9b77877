"""What is given to FSDP1's functions as a model: that shows it to be sharded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.python.nodes import model_argument, text_of


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.guards import Guards
    from fsdp_migrate.source.python.scopes import Index


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
