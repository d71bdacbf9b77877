"""What a name or an attribute of ``self`` holds at a place, where the source shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.nodes import dotted


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.guards import Guards
    from fsdp_migrate.source.python.scopes import Binding, Index


def last_value(index: Index, node: cst.Name | cst.Attribute) -> cst.BaseExpression | None:
    """Return the expression whose value a name or ``self.name`` holds here, or None where that is in doubt.

    Of a name that is assigned more than once it is the last assignment before, if that is always run.
    """
    if isinstance(node, cst.Attribute):
        values = values_set(index, node)
        return values[0] if len(values) == 1 else None
    # What is read in the value of an assignment is what was there before it: `params = list(params)`.
    above = {node, *index.ancestors(node)}
    bindings = [each for each in index.scopes[node].lookup(node.value) if each.value not in above]
    if len(bindings) == 1:
        return bindings[0].value if bindings[0].index is None else None
    function, place = index.function(node), index.order[node]
    if any(index.function(each.node) is not function for each in bindings):
        return None
    before = [each for each in bindings if index.order[each.node] < place]
    last = max(before, key=lambda each: index.order[each.node], default=None)
    if last is None or last.value is None or last.index is not None or not always_runs(index, last, node):
        return None
    return last.value


def values_set(index: Index, node: cst.Attribute) -> list[cst.BaseExpression]:
    """Return the values that the class around gives an attribute of its objects, ``self.model``."""
    text, owner = dotted(node) or "", index.class_of(node)
    if owner is None or not text.startswith("self."):
        return []
    assigns = (index.parents[each] for each in index.places_set(text))
    return [a.value for a in assigns if isinstance(a, cst.Assign) and index.class_of(a) is owner]


def renamed_as(index: Index, name: cst.Name) -> Iterator[cst.BaseExpression]:
    """Yield what a name is another name for here, in each branch: ``step = train if x else test``."""
    values = [each.value for each in index.bindings_of(name) if each.index is None and each.value is not None]
    if len(values) > 1 and (last := last_value(index, name)) is not None:
        values = [last]
    for value in values:
        for part in (value.body, value.orelse) if isinstance(value, cst.IfExp) else (value,):
            if isinstance(part, (cst.Name, cst.Attribute)) and dotted(part) != name.value:
                yield part


def stands_for(index: Index, guards: Guards, name: cst.Name) -> Iterator[cst.BaseExpression]:
    """Yield what a name may hold, ``.module`` left out: the values of names, and what calls here give."""
    for binding in index.scopes[name].lookup(name.value) if name in index.scopes else ():
        value = binding.value if binding.index is None else None
        if isinstance(value, cst.Attribute) and value.attr.value == "module":
            value = value.value
        if isinstance(value, (cst.Name, cst.Attribute)):
            yield value
        if binding.kind == "param":
            yield from _given(index, guards, name)


def _given(index: Index, guards: Guards, name: cst.Name) -> Iterator[cst.BaseExpression]:
    """Yield what the calls of this source give to a parameter of the function around a name, by its place."""
    function = index.function(name)
    names = [each.name.value for each in function.params.params] if function is not None else []
    if name.value not in names or "self" in names:
        return
    for call in index.by_kind.get(cst.Call, ()):
        assert isinstance(call, cst.Call)
        given = call.args[: names.index(name.value) + 1]
        if len(given) <= names.index(name.value) or any(arg.star or arg.keyword for arg in given):
            continue
        if isinstance(call.func, cst.Name) and function in list(guards.functions(call.func)):
            yield given[-1].value


def always_runs(index: Index, binding: Binding, node: cst.CSTNode) -> bool:
    """Tell whether an assignment stands in a block that the place stands in too: then it was run."""
    blocks = (cst.IndentedBlock, cst.SimpleStatementSuite, cst.Module)
    block = next((a for a in index.ancestors(binding.node) if isinstance(a, blocks)), None)
    return block is not None and block in set(index.ancestors(node))
