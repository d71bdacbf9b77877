"""Lists of lists of parameters: one list of gradients a task, of which one is taken, or each in a loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.containers import is_slice
from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.loops import binds, loops_around
from fsdp_migrate.source.python.nodes import dotted


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fsdp_migrate.source.python.model_kinds import Key
    from fsdp_migrate.source.python.text import Source


_COMPREHENSIONS = (cst.GeneratorExp, cst.ListComp, cst.SetComp)
_SAME = frozenset({"enumerate", "list", "reversed", "sorted", "tuple", "zip"})


@dataclass(frozen=True)
class ListsOfLists:
    """Answers for one source which expressions are one of several lists of parameters. Reads only."""

    source: Source
    fillings: Mapping[Key, Sequence[tuple[cst.BaseExpression | None, cst.BaseExpression, bool]]]
    """What is put into each list: where, what, and whether it is all that is in that."""
    is_many: Callable[[cst.BaseExpression], bool]
    """Tells whether an expression is a list of parameters or gradients itself."""

    def is_one(self, node: cst.BaseExpression) -> bool:
        """Tell whether it is one of several lists: ``grads[0]``, or what a loop over them names."""
        if isinstance(node, cst.Subscript):
            return not is_slice(node) and self._are(node.value)
        if not isinstance(node, cst.Name):
            return False
        around = loops_around(self.source.index, node)
        return any(self._are(loop.iter) for loop in around if binds(loop, node.value))

    def _are(self, node: cst.BaseExpression) -> bool:
        """Tell whether what it holds are lists of parameters or gradients."""
        if isinstance(node, _COMPREHENSIONS):
            return self.is_many(node.elt)
        if isinstance(node, cst.DictComp):
            return self.is_many(node.value)
        if isinstance(node, (cst.Dict, cst.List, cst.Tuple)):
            return any(self.is_many(each.value) for each in node.elements)
        if isinstance(node, cst.Call):
            if isinstance(node.func, cst.Attribute) and node.func.attr.value in {"items", "values"}:
                return self._are(node.func.value)
            return dotted(node.func) in _SAME and any(self._are(arg.value) for arg in node.args)
        if not isinstance(node, (cst.Attribute, cst.Name)) or node not in self.source.index.scopes:
            return False
        key = self.source.models.key_of(node)
        put = self.fillings.get(key, ()) if key is not None else ()
        if any(self.is_many(value) for _, value, is_all in put if not is_all):
            return True
        made = last_value(self.source.index, node) if isinstance(node, cst.Name) else None
        is_made = isinstance(made, (*_COMPREHENSIONS, cst.Dict, cst.DictComp, cst.List, cst.Tuple))
        return is_made and made is not None and self._are(made)
