"""What is private to torch's FSDP1 has no twin: flat parameters, handles, and its internal modules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.method_calls import was_asked_for
from fsdp_migrate.source.python.nodes import dotted
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "private"
CODES = ("FM317",)

_MEANT = "private to FSDP1: FSDP2 has no flat parameters, handles or wrapped modules; find what it was for."
_OWN = (
    "FSDP2's modules have no such attribute, unless the model itself has one of this name: take what "
    "prepare_fully_shard was given, or fsdp_migrate.shard_plan(model)."
)
_NOT_THERE = "stays: it is asked for first, and not there"
_NAMES = frozenset({"_flat_param", "_fsdp_wrapped_module", "_handle", "_handles", "flat_param"})
# Of FSDP1 alone, whatever they are asked of.
_FSDP1S = frozenset(
    {
        "_all_handles",
        "_exec_order_data",
        "_flat_param",
        "_fsdp_wrapped_module",
        "_fully_sharded_module_to_handle",
        "_is_flat_param",
        "_streams",
        "_unsharded_flat_param_names",
        "flat_param",
    }
)


def find(source: Source) -> Iterator[Found]:
    """Find names of torch's private modules, and FSDP1's private attributes."""
    for node, name in source.references.items():
        if catalog.is_private(name) or name.split(".")[0] == "FlatParameter":
            yield Found("FM317", node, _MEANT, "commented", covers=(node,))
    if not source.uses_fsdp1:
        return
    own = {
        target.target.attr.value
        for assign in source.assignments
        for target in assign.targets
        if isinstance(target.target, cst.Attribute) and dotted(target.target.value) == "self"
    }
    # A name alone tells nothing where a class of the source's own has a public attribute of it.
    telling = _FSDP1S - {name for name in own if not name.startswith("_")}
    for node in source.attributes:
        if node.attr.value in catalog.WRAPPER_ATTRIBUTES and _is_asked_of_a_model(source, node):
            yield Found("FM317", node, _OWN, "commented")
        if node.attr.value not in _NAMES | _FSDP1S or node in source.references:
            continue
        if not (node.attr.value in telling or _is_asked_of_a_model(source, node)) or _is_own(source, node):
            continue
        if was_asked_for(source, node):
            yield Found("FM317", node, _NOT_THERE, "kept")
        else:
            yield Found("FM317", node, _MEANT, "commented")


def _is_asked_of_a_model(source: Source, node: cst.Attribute) -> bool:
    if _is_own(source, node):
        return False
    return source.models.certainty(node.value) is not None or source.models.is_guarded(node.value)


def _is_own(source: Source, node: cst.Attribute) -> bool:
    """Tell whether it is an attribute that the source's own class has, or that is set under a public name."""
    is_set = isinstance(source.index.parents[node], cst.AssignTarget)
    if dotted(node.value) in {"self", "cls"}:
        return is_set or not source.models.is_guarded(node.value)
    return is_set and not node.attr.value.startswith("_") and node.attr.value not in _FSDP1S
