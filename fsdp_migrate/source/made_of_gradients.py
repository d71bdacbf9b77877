"""Whether a function made of the gradients of a sharded model what it sums over ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.local_numbers import within_local_numbers
from fsdp_migrate.source.python.nodes import parameters_of, walk_for


if TYPE_CHECKING:
    from fsdp_migrate.source.python.text import Source


PLAIN = frozenset({"full_tensor", "to_local"})
"""What makes a plain tensor of a DTensor."""
_DEEPEST = 3


def is_of_gradients(source: Source, call: cst.Call, node: cst.BaseExpression) -> bool:
    """Tell whether a function that is given a sharded model sums over ranks what it made of gradients."""
    function = source.index.function(call)
    if function is None or not isinstance(node, cst.Name):
        return False
    given = (source.models.facts.get((function, each.name.value), ()) for each in parameters_of(function))
    if not any("fsdp" in kinds for kinds in given):
        return False
    made_plain = (each.attr.value in PLAIN for each in walk_for(function, cst.Attribute))
    return not any(made_plain) and _holds_gradients(source, node, 0)


def _holds_gradients(source: Source, node: cst.Name, depth: int) -> bool:
    """Tell whether a name holds what was made of ``.grad``, by way of other names too."""
    for binding in source.index.scopes[node].lookup(node.value) if node in source.index.scopes else ():
        above = source.index.parents.get(binding.node)
        value = above.value if isinstance(above, cst.AugAssign) else binding.value
        if value is None:
            continue
        local = within_local_numbers(source, value)
        grads = (each for each in walk_for(value, cst.Attribute) if each.attr.value == "grad")
        if any(each not in local and not _is_only_asked_for(source, each) for each in grads):
            return True
        names = (each for each in walk_for(value, cst.Name) if each.value != node.value)
        if depth < _DEEPEST and any(_holds_gradients(source, each, depth + 1) for each in names):
            return True
        calls = walk_for(value, cst.Call)
        if depth < _DEEPEST and any(_gives_gradients(source, e, binding.index, depth + 1) for e in calls):
            return True
    return False


def _is_only_asked_for(source: Source, node: cst.Attribute) -> bool:
    """Tell whether a gradient is only asked for in a test: ``if p.grad is not None and p.grad.numel()``."""
    tests = (each.test for each in source.index.ancestors(node) if isinstance(each, (cst.CompIf, cst.IfExp)))
    return any(node in set(walk_for(test, cst.Attribute)) for test in tests)


def _gives_gradients(source: Source, call: cst.Call, index: int | None, depth: int) -> bool:
    """Tell whether a function of this source returns what it made of ``.grad``: ``total = local(model)``."""
    for function in source.models.guards.functions(call.func):
        if any(each.attr.value in PLAIN for each in walk_for(function, cst.Attribute)):
            continue
        for given in walk_for(function.body, cst.Return):
            value = given.value
            if isinstance(value, cst.Tuple):  # `loss, norm = step(model)`
                is_seen = index is not None and index < len(value.elements)
                value = value.elements[index].value if is_seen and index is not None else None
            if value is None:
                continue
            if any(each.attr.value == "grad" for each in walk_for(value, cst.Attribute)):
                return True
            if any(_holds_gradients(source, each, depth) for each in walk_for(value, cst.Name)):
                return True
    return False
