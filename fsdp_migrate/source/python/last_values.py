"""What a name or an attribute of ``self`` holds at a place, where the source shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.nodes import dotted


if TYPE_CHECKING:
    from fsdp_migrate.source.python.scopes import Binding, Index


def last_value(index: Index, node: cst.Name | cst.Attribute) -> cst.BaseExpression | None:
    """Return the expression whose value a name or ``self.name`` holds here, or None where that is in doubt.

    Of a name that is assigned more than once it is the last assignment before, if that is always run.
    """
    if isinstance(node, cst.Attribute):
        return _of_attribute(index, node)
    bindings = index.scopes[node].lookup(node.value)
    if len(bindings) == 1:
        return bindings[0].value if bindings[0].index is None else None
    function, place = index.function(node), index.order[node]
    if any(index.function(each.node) is not function for each in bindings):
        return None
    before = [each for each in bindings if index.order[each.node] < place]
    last = max(before, key=lambda each: index.order[each.node], default=None)
    if last is None or last.value is None or last.index is not None or not _always_runs(index, last, node):
        return None
    return last.value


def _always_runs(index: Index, binding: Binding, node: cst.CSTNode) -> bool:
    """Tell whether an assignment stands in a block that the place stands in too: then it was run."""
    blocks = (cst.IndentedBlock, cst.SimpleStatementSuite, cst.Module)
    block = next((a for a in index.ancestors(binding.node) if isinstance(a, blocks)), None)
    return block is not None and block in set(index.ancestors(node))


def _of_attribute(index: Index, node: cst.Attribute) -> cst.BaseExpression | None:
    text, owner = dotted(node), index.class_of(node)
    if text is None or owner is None or not text.startswith("self."):
        return None
    values = [
        each.value
        for each in index.by_kind.get(cst.Assign, ())
        if isinstance(each, cst.Assign) and index.class_of(each) is owner
        if any(dotted(target.target) == text for target in each.targets)
    ]
    return values[0] if len(values) == 1 else None
