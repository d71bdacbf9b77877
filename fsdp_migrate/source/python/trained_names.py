"""The names that models had which a Trainer was given: it shards them in place, when it trains.

Below that place, in the same function, they are sharded. An attribute of ``self`` may be in other methods.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.nodes import dotted, text_of


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.scopes import Index


@dataclass(eq=False)
class TrainedNames:
    """Names and attributes, each with the calls that shard what it stands for. Reads only."""

    index: Index
    calls: dict[str, list[cst.Call]] = field(default_factory=dict)

    def add(self, text: str, call: cst.Call) -> None:
        """Note that a call shards what is called so in its function."""
        self.calls.setdefault(text, []).append(call)

    def is_sharded(self, node: cst.BaseExpression) -> bool:
        """Tell whether it is such a name, below where it was sharded, and stands for nothing new."""
        return any(not self._is_bound_since(node, call) for call in self._above(node))

    def may_be_sharded(self, node: cst.BaseExpression) -> bool:
        """Tell whether it is an attribute that another method of its class may have sharded before."""
        text = dotted(node) or ""
        owner, function = self.index.class_of(node), self.index.function(node)
        if owner is None or function is None or function.name.value == "__init__":
            return False
        return text.startswith("self.") and any(
            self.index.class_of(call) is owner and self.index.function(call) is not function
            for call in self.calls.get(text, ())
        )

    def _above(self, node: cst.BaseExpression) -> Iterator[cst.Call]:
        text = dotted(node)
        calls = self.calls.get(text, ()) if text is not None else ()
        if not calls or isinstance(self.index.parents.get(node), cst.AssignTarget):
            return
        order, function = self.index.order, self.index.function(node)
        for call in calls:
            is_above = order[call] < order.get(node, 0) and not any(
                node is each for each in self._given(call)
            )
            if is_above and self.index.function(call) is function and not self.index.excludes(call, node):
                yield call
            elif function is not None and isinstance(node, cst.Attribute):
                owner = self.index.class_of(node)
                if owner is self.index.class_of(call) and self._is_asked_below(function, call):
                    yield call

    def _is_asked_below(self, function: cst.FunctionDef, call: cst.Call) -> bool:
        """Tell whether the method that shards runs another one of the same object below that."""
        order = self.index.order
        return function is not self.index.function(call) and any(
            order[each] > order[call]
            and text_of(each.func) == f"self.{function.name.value}"
            and self.index.function(each) is self.index.function(call)
            and not self.index.excludes(call, each)
            for each in self.index.calls_of_method(function.name.value)
        )

    @staticmethod
    def _given(call: cst.Call) -> Iterator[cst.BaseExpression]:
        yield from (arg.value for arg in call.args)

    def _is_bound_since(self, node: cst.BaseExpression, call: cst.Call) -> bool:
        order, place = self.index.order, self.index.order.get(node, 0)
        if isinstance(node, cst.Name):
            bound = [each.node for each in self.index.bindings_of(node)]
        else:
            bound = list(self.index.places_set(dotted(node) or ""))
        function = self.index.function(node)
        return any(
            order[call] < order.get(each, 0) < place and self.index.function(each) is function
            for each in bound
        )


def other_names(index: Index, text: str, made: cst.Call) -> Iterator[str]:
    """Yield what else a model is called in the function of a call: ``self.net = model``."""
    function = index.function(made)
    for node in index.by_kind.get(cst.Assign, ()):
        assign = cst.ensure_type(node, cst.Assign)
        targets = [dotted(each.target) for each in assign.targets]
        value = dotted(assign.value)
        if value is None or text not in {value, *targets} or index.function(assign) is not function:
            continue
        # `self.model = None` in a constructor says nothing, and `model = other` is no name of the same.
        if value == text:
            yield from (each for each in targets if each)
        elif "." in value or "." in text:
            yield value
