"""States of optimizers that a source only reads: for their keys, or for how many elements they have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.python.nodes import dotted, text_of
from fsdp_migrate.source.python.optimizers import STATE


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.models import Models
    from fsdp_migrate.source.python.scopes import Index


_OF_KEYS: Final = frozenset({"enumerate", "frozenset", "len", "list", "set", "sorted", "tuple"})


def is_asked_for_keys(index: Index, call: cst.Call) -> bool:
    """Tell whether a state is asked for its keys alone, which sharding leaves: ``o.state_dict().keys()``.

    A loop over it goes through its keys, and so do ``list`` and ``sorted``.
    """
    above = index.parents.get(call)
    if isinstance(above, cst.Attribute) and above.attr.value == "keys":
        asked = index.parents.get(above)
        return isinstance(asked, cst.Call) and asked.func is above
    if isinstance(above, cst.Arg):
        return above.keyword is None and not above.star and _takes_keys(index, index.parents.get(above))
    if isinstance(above, (cst.For, cst.CompFor)):
        return above.iter is call
    return isinstance(above, cst.ComparisonTarget) and isinstance(above.operator, (cst.In, cst.NotIn))


def _takes_keys(index: Index, given: cst.CSTNode | None) -> bool:
    """Tell whether a call is one of Python's own functions that take no more than the keys of a dict."""
    func = given.func if isinstance(given, cst.Call) else None
    return isinstance(func, cst.Name) and func.value in _OF_KEYS and not index.bindings_of(func)


def is_summed_state(models: Models, call: cst.Call) -> bool:
    """Tell whether ``v.numel()`` of an optimizer's state is added up, which was one rank's part."""
    func = call.func
    if not isinstance(func, cst.Attribute) or STATE not in models.kinds(func.value):
        return False
    for above in models.index.ancestors(call):
        if isinstance(above, cst.AugAssign):
            return isinstance(above.operator, cst.AddAssign)
        if isinstance(above, cst.Assign):
            added = {text_of(each) for each in _added(above.value)}
            return any(text_of(each.target) in added for each in above.targets)
        if isinstance(above, cst.Call) and dotted(above.func) == "sum":
            return True
        if isinstance(above, (cst.BaseSmallStatement, cst.Comparison, cst.BaseCompoundStatement)):
            return False
    return False


def _added(node: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """Yield what a sum adds: ``total`` and ``v.numel()`` of ``total + v.numel()``."""
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Add):
        yield from _added(node.left)
        yield from _added(node.right)
    else:
        yield node
