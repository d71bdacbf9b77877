"""``MixedPrecision``, ``ShardingStrategy``, policies and their kin: taken as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdp_migrate.source import catalog
from fsdp_migrate.source.method_calls import renamed
from fsdp_migrate.source.plugin_attributes import is_its_strategy
from fsdp_migrate.source.uses import Found, Need


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "argument-words"
CODES = ("FM310",)

_NOW = Need("torch.distributed.fsdp.wrap", catalog.SIZE_POLICY)


def find(source: Source) -> Iterator[Found]:
    """Find everything that FSDP1's arguments are made of."""
    for node, name in source.references.items():
        if is_its_strategy(source, node):
            continue
        if name.split(".")[0] in catalog.ARGUMENT_WORDS:
            becomes = "stays: prepare_fully_shard takes it as it is"
            yield Found("FM310", node, becomes, "kept", covers=(node,))
        elif name == catalog.FORMER_SIZE_POLICY:
            new = source.local_name(_NOW)
            yield Found("FM310", node, new, "rewritten", (renamed(node, new),), (_NOW,), covers=(node,))
