"""A source before and after it is rewritten."""

from __future__ import annotations

from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from pathlib import Path


BEFORE = (
    "from torch.distributed.fsdp import FullyShardedDataParallel\nmodel = FullyShardedDataParallel(net)\n"
)


AFTER = "from fsdp_migrate import prepare_fully_shard\nmodel = prepare_fully_shard(net)\n"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}
