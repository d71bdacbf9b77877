"""What is private to torch's FSDP1 has no twin: flat parameters, handles, and its internal modules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source import catalog
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
_NAMES = frozenset(
    {"_all_handles", "_flat_param", "_fsdp_wrapped_module", "_handle", "_handles", "flat_param"}
)


def find(source: Source) -> Iterator[Found]:
    """Find names of torch's private modules, and FSDP1's private attributes."""
    for node, name in source.references.items():
        if catalog.is_private(name) or name.split(".")[0] == "FlatParameter":
            yield Found("FM317", node, _MEANT, "commented", covers=(node,))
    if not source.uses_fsdp1:
        return
    for node in source.attributes:
        if node.attr.value in catalog.WRAPPER_ATTRIBUTES and _is_asked_of_a_model(source, node):
            yield Found("FM317", node, _OWN, "commented")
        if node.attr.value not in _NAMES or node in source.references:
            continue
        known = node.attr.value.startswith(("_fsdp", "_flat", "flat")) or source.models.certainty(node.value)
        if known and not _is_own(source, node):
            yield Found("FM317", node, _MEANT, "commented")


def _is_asked_of_a_model(source: Source, node: cst.Attribute) -> bool:
    if _is_own(source, node):
        return False
    return source.models.certainty(node.value) is not None or source.models.is_guarded(node.value)


def _is_own(source: Source, node: cst.Attribute) -> bool:
    """Tell whether it is an attribute that the source's own class has: ``self.flat_param = ...``."""
    return isinstance(source.index.parents[node], cst.AssignTarget)
