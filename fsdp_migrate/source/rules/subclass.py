"""A subclass of ``FullyShardedDataParallel`` has no place in FSDP2, which wraps nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.python.nodes import dotted
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "subclass"
CODES = ("FM304",)

_MEANT = (
    "FSDP2 has no class to derive from: move what this adds to functions that take the model, and make the "
    "model by prepare_fully_shard(model, {...})."
)
_ASKING = frozenset({"isinstance", "issubclass"})
_CALLED = "this makes an FSDP1 model by a subclass: call prepare_fully_shard(model, {...}) instead."


_ASKED = (
    "a model of prepare_fully_shard is of no subclass of FSDP1's class, and this is false of it, without an "
    "error: ask isinstance(..., torch.distributed.fsdp.FSDPModule)."
)


def find(source: Source) -> Iterator[Found]:
    """Find every subclass, and where one is called or asked for, also one of another file."""
    names: set[str] = set()
    for node in source.index.by_kind.get(cst.ClassDef, ()):
        assert isinstance(node, cst.ClassDef)
        bases = [base.value for base in node.bases if source.index.fsdp1(base.value) == catalog.FSDP]
        bases = bases or [base.value for base in node.bases if _is_one(source, base.value, names)]
        if bases:
            names.add(node.name.value)
            yield Found("FM304", bases[0], _MEANT, "commented", covers=tuple(bases))
    for call in source.calls if names or source.links.subclasses else ():
        if _is_one(source, call.func, names):
            yield Found("FM304", call, _CALLED, "commented")
        elif dotted(call.func) in _ASKING and len(call.args) > 1:
            asked = call.args[1].value
            parts = [each.value for each in asked.elements] if isinstance(asked, cst.Tuple) else [asked]
            if any(_is_one(source, each, names) for each in parts):
                yield Found("FM304", call, _ASKED, "commented")


def _is_one(source: Source, node: cst.BaseExpression, names: set[str]) -> bool:
    if isinstance(node, cst.Name) and node.value in names:
        return True
    is_name = isinstance(node, (cst.Attribute, cst.Name)) and bool(source.links.subclasses)
    return is_name and not source.links.subclasses.isdisjoint(source.index.qualified(node))
