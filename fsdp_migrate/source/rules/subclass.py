"""A subclass of ``FullyShardedDataParallel`` has no place in FSDP2, which wraps nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source import catalog
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
_CALLED = "this makes an FSDP1 model by a subclass: call prepare_fully_shard(model, {...}) instead."


def find(source: Source) -> Iterator[Found]:
    """Find every subclass, and every call of one."""
    names = set()
    for node in source.index.by_kind.get(cst.ClassDef, ()):
        assert isinstance(node, cst.ClassDef)
        bases = [base.value for base in node.bases if source.index.fsdp1(base.value) == catalog.FSDP]
        if bases:
            names.add(node.name.value)
            yield Found("FM304", bases[0], _MEANT, "commented", covers=tuple(bases))
    for call in source.calls:
        if isinstance(call.func, cst.Name) and call.func.value in names:
            yield Found("FM304", call, _CALLED, "commented")
