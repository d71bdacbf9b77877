"""Accelerate's plugin in a config from which it is instantiated: ``_target_: accelerate...Plugin``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdp_migrate.adapters.engine.base import mappings_of, plain_values
from fsdp_migrate.adapters.engine.torch_objects import target_of
from fsdp_migrate.findings import named


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fsdp_migrate.adapters.document.nodes import Node


_PLUGIN = "FullyShardedDataParallelPlugin"
_OTHERWISE = (
    "makes Accelerate's FullyShardedDataParallelPlugin, which is not changed. For FSDP2 write "
    "`fsdp_version: 2`, `reshard_after_forward: true` (false for SHARD_GRAD_OP and NO_SHARD) in place of "
    "`sharding_strategy`, and `state_dict_type: FULL_STATE_DICT` where none is given; leave out "
    "`use_orig_params`, `sync_module_states`, `backward_prefetch`, `forward_prefetch` and "
    "`limit_all_gathers`, which FSDP2 has not."
)


def told_of_plugins(documents: Iterable[Node]) -> str:
    """Say what a plugin for FSDP1 that documents describe becomes; nothing where they describe none."""
    found = [path for document in documents for path in _plugins(document)]
    return f"{named(found, 3)} {_OTHERWISE}" if found else ""


def _plugins(document: Node) -> Iterator[str]:
    for path, mapping in mappings_of(document):
        values = plain_values(mapping)
        if str(target_of(values)).endswith(_PLUGIN) and str(values.get("fsdp_version")) != "2":
            yield ".".join(path) or "."
