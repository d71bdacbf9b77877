"""FSDP1's sharded states hold ``ShardedTensor``; FSDP2's hold ``DTensor``, which has other methods.

https://docs.pytorch.org/docs/stable/distributed.tensor.html
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "sharded-tensor"
CODES = ("FM421",)

_CLASS = re.compile(r"^torch\.distributed\._shard(ed_tensor|\.sharded_tensor)(\.api)?\.ShardedTensor$")
_MEANT = (
    "FSDP2's states hold torch.distributed.tensor.DTensor: ask for that class, and take .to_local() where "
    ".local_shards() or .local_tensor() was called, and .full_tensor() for .gather()."
)


def find(source: Source) -> Iterator[Found]:
    """Find the class, in sources that know FSDP1 and not in annotations."""
    if not source.uses_fsdp1:
        return
    for node in (*source.loads, *source.attributes):
        if not any(_CLASS.match(name) for name in source.index.qualified(node)):
            continue
        if not any(isinstance(above, cst.Annotation) for above in source.index.ancestors(node)):
            yield Found("FM421", node, _MEANT, "commented")
