"""Norms and sums of the gradients of lists of parameters, of which nothing shows whose they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.local_numbers import is_local_number
from fsdp_migrate.source.python.clipped_lists import are_unknown, whose_groups
from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.nodes import dotted, last_name, text_of, walk_for
from fsdp_migrate.source.python.parameters import SAME_PARAMETERS


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


_OF_GRADIENTS: Final = frozenset({"all_reduce", "norm", "vector_norm"})
_OF_DTENSORS: Final = frozenset({"DTensor", "_local_tensor", "full_tensor", "to_local"})
_MAKES: Final = frozenset({"distribute_tensor", "from_local"})
_COMPREHENSIONS = (cst.ListComp, cst.GeneratorExp, cst.SetComp)
_DEEPEST: Final = 4


def of_unknown_lists(source: Source) -> Iterator[cst.Call]:
    """Yield what makes a number of ``p.grad`` in a loop over such a list: ``for p in self.params``."""
    for kind in (cst.For, cst.CompFor):
        for node in source.index.by_kind.get(kind, ()):
            assert isinstance(node, (cst.For, cst.CompFor))
            if not isinstance(node.target, cst.Name):
                continue
            given, are_gradients = listed(source, node.iter)
            region = node.body if isinstance(node, cst.For) else _whole(source, node)
            if not _is_list(source, given) or knows_dtensors(region):
                continue
            name = node.target.value
            if not are_gradients and not _asks_for_gradients(region, name):
                continue
            made = [each for each in walk_for(region, cst.Call) if is_of_gradients(source, each)]
            made = [each for each in made if any(name == n.value for n in walk_for(each, cst.Name))]
            if made and are_unknown(source, given):
                yield from made


def _whole(source: Source, loop: cst.CompFor) -> cst.CSTNode:
    """Return the comprehension that a loop of it stands in, the second one too."""
    above = source.index.parents[loop]
    return _whole(source, above) if isinstance(above, cst.CompFor) else above


def _is_list(source: Source, given: cst.BaseExpression) -> bool:
    """Tell whether it may be a list: a name, or ``group["params"]`` of an optimizer that is not this one."""
    if isinstance(given, cst.Subscript):
        optimizer = whose_groups(source, given)
        return optimizer is not None and text_of(optimizer) != "self"
    return isinstance(given, (cst.Attribute, cst.Name))


def knows_dtensors(region: cst.CSTNode) -> bool:
    """Tell whether a loop takes DTensors apart itself: one that makes such of plain tensors does not."""
    names = {each.value for each in walk_for(region, cst.Name)} & {*_OF_DTENSORS, *_MAKES}
    return bool(names - {"DTensor", *_MAKES}) or names == {"DTensor"}


def is_of_gradients(source: Source, call: cst.Call) -> bool:
    """Tell whether a call makes one number of gradients, or gives them to the other ranks."""
    name = call.func.attr.value if isinstance(call.func, cst.Attribute) else (dotted(call.func) or "")
    if is_local_number(source, call):
        return False  # of this rank's part, as under FSDP1
    return name in _OF_GRADIENTS or (name == "sum" and ".grad." in text_of(call.func))


def listed(
    source: Source, node: cst.BaseExpression, depth: int = 0, *, are_gradients: bool = False
) -> tuple[cst.BaseExpression, bool]:
    """Return the list that another one is made of, and whether that has the gradients of its items."""
    found: cst.BaseExpression | None = None
    if isinstance(node, cst.Call) and node.args:
        is_same = last_name(node.func) in SAME_PARAMETERS
        found = node.args[-1].value if is_same else None
    elif isinstance(node, _COMPREHENSIONS) and isinstance(node.for_in.target, cst.Name):
        own = node.for_in.target.value
        is_gradient = text_of(node.elt) in {f"{own}.grad", f"{own}.grad.data", f"{own}.grad.detach()"}
        are_gradients = are_gradients or is_gradient
        found = node.for_in.iter if is_gradient or text_of(node.elt) == own else None
    elif isinstance(node, cst.Name) and node in source.index.scopes:
        value = last_value(source.index, node)
        is_made = isinstance(value, (cst.Call, *_COMPREHENSIONS))
        found = value if is_made and not _has_groups(value) else None
    if found is None or depth > _DEEPEST:
        return node, are_gradients
    inner, are = listed(source, found, depth + 1, are_gradients=are_gradients)
    # What is made of a call that is not seen is the list itself.
    return (
        (node, are_gradients) if isinstance(inner, cst.Call) and isinstance(node, cst.Name) else (inner, are)
    )


def _has_groups(value: cst.BaseExpression | None) -> bool:
    return value is not None and any(
        each.attr.value == "param_groups" for each in walk_for(value, cst.Attribute)
    )


def _asks_for_gradients(region: cst.CSTNode, name: str) -> bool:
    return any(text_of(each) == f"{name}.grad" for each in walk_for(region, cst.Attribute))
