"""State dict contexts that a block enters by a function or a name: ``with self.full_state():``."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.last_values import last_value, value_in_class
from fsdp_migrate.source.python.nodes import last_name, walk_for


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.contexts import Context
    from fsdp_migrate.source.python.text import Source


@dataclass(eq=False)
class EnteredContexts:
    """Answers for one source which blocks enter what contexts. Reads only."""

    source: Source
    every: list[Context]

    @functools.cached_property
    def _givers(self) -> dict[cst.FunctionDef, list[Context]]:
        """The functions whose callers run in a context: they yield in it, or return it."""
        found: dict[cst.FunctionDef, list[Context]] = {}
        for each in self.every:
            function = self.source.index.function(each.call)
            is_given = isinstance(self.source.index.parents[each.call], cst.Return)
            if each.block is not None:
                is_given = any(walk_for(each.block.body, cst.Yield))
            if function is not None and is_given:
                found.setdefault(function, []).append(each)
        return found

    def beside(self, context: Context) -> list[Context]:
        """Return what the function gives that gives a context: this one, or one of several."""
        return next((every for every in self._givers.values() if context in every), [context])

    def _by(self, item: cst.BaseExpression) -> list[Context]:
        """Return the contexts that a block enters by a function or a name: ``with self.sharded(model):``."""
        if isinstance(item, cst.Name) and item in self.source.index.scopes:
            item = last_value(self.source.index, item) or item
        if not isinstance(item, cst.Call):
            return []
        made = (item, self._made_by(item.func))
        own = [each for each in self.every if each.call in made and each.block is None]
        functions = set(self.source.models.guards.functions(item.func)) if self._givers else set()
        if not functions and isinstance(item.func, cst.Attribute):
            # A method, of whatever object.
            functions = {each for each in self._givers if each.name.value == item.func.attr.value}
        return own + [each for function in functions for each in self._givers.get(function, ())]

    def _made_by(self, func: cst.BaseExpression) -> cst.BaseExpression | None:
        """Return the partial that is called, or what a function without a name gives: ``with full():``."""
        value: cst.BaseExpression | None = func
        if isinstance(func, (cst.Name, cst.Attribute)):
            value = last_value(self.source.index, func) if func in self.source.index.scopes else None
            if value is None and isinstance(func, cst.Attribute):
                value = value_in_class(self.source.index, func)
        return value.body if isinstance(value, cst.Lambda) else value

    def around(self, node: cst.CSTNode) -> list[Context]:
        """Return what the innermost ``with`` around a node enters by a function or a name."""
        for above in self._blocks_around(node) if self.every else ():
            entered = [each for item in above.items for each in self._by(item.item)]
            if entered:
                return entered
        return []

    def _blocks_around(self, node: cst.CSTNode) -> Iterator[cst.With]:
        below: cst.CSTNode = node
        for above in self.source.index.ancestors(node):
            if isinstance(above, cst.With) and below is above.body:
                yield above
            below = above

    def is_by_another_file(self, node: cst.CSTNode) -> bool:
        """Tell whether a place is run in a context that a function of another file gives, or may give."""
        index, given = self.source.index, self.source.links.gives_contexts
        items = [item.item for above in self._blocks_around(node) for item in above.items]
        held = [
            last_value(index, each) for each in items if isinstance(each, cst.Name) and each in index.scopes
        ]
        stacked = (
            arg.value
            for call in index.calls_of_method("enter_context")
            for arg in call.args
            if index.function(call) is index.function(node) and index.order[call] < index.order[node]
        )
        makers = (*items, *(each for each in held if each is not None), *stacked)
        calls = [call for each in makers for call in walk_for(each, cst.Call)]
        return any(last_name(each.func) in given and not self._by(each) for each in calls)

    def blocks_of(self, context: Context) -> list[cst.With]:
        """Return the blocks that run in a context: its own, or those of who enters what gives it."""
        is_given = any(context in each for each in self._givers.values())
        if context.block is not None and not is_given:
            return [context.block]
        blocks = (cst.ensure_type(each, cst.With) for each in self.source.index.by_kind.get(cst.With, ()))
        return [each for each in blocks if any(context in self._by(item.item) for item in each.items)]

    def is_otherwise(self, context: Context) -> bool:
        """Tell whether what gives a context may be entered otherwise than by blocks: by a stack."""
        names = {name.name.value for name, every in self._givers.items() if context in every}
        return any(
            last_name(call.func) in names
            and not isinstance(self.source.index.parents[call], (cst.Assign, cst.WithItem))
            for call in self.source.calls
        )
