"""Models that FSDP1's functions are given below a check of the project: sharded where that check leads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.bound_anew import is_in_value
from fsdp_migrate.source.python.evidence import given_below_checks
from fsdp_migrate.source.python.nodes import text_of


if TYPE_CHECKING:
    from fsdp_migrate.source.python.guards import Guards
    from fsdp_migrate.source.python.scopes import Index


class ShownHere:
    """Answers of a source where such a call shows what an expression is. Reads only."""

    def __init__(self, index: Index, guards: Guards) -> None:
        self._index, self._guards = index, guards
        self._calls: dict[str, list[cst.Call]] = {}
        for model, call in given_below_checks(index, guards):
            self._calls.setdefault(text_of(model), []).append(call)

    def is_shown(self, node: cst.CSTNode) -> bool:
        """Tell whether a place is reached by the checks that lead to such a call with the same model."""
        calls = self._calls.get(text_of(node), ()) if self._calls else ()
        known = set(self._guards.facts(node)) if calls else set()
        return any(
            self._is_in_reach(call, node) and known.issuperset(self._guards.facts(call)) for call in calls
        )

    def _is_in_reach(self, call: cst.Call, node: cst.CSTNode) -> bool:
        """Tell whether a call stands in the same function, and the name is bound to nothing between."""
        index = self._index
        if index.function(call) is not index.function(node):
            return False
        first, last = sorted((index.order[call], index.order.get(node, index.order[call])))
        names = [] if not isinstance(node, cst.Name) else [each.node for each in index.bindings_of(node)]
        bound = [*names, *(each.target for each in index.places_set(text_of(node)))]
        between = (each for each in bound if first < index.order.get(each, first) < last)
        return all(is_in_value(index, each, node) for each in between)  # `model = model.module`
