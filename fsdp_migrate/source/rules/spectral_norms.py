"""``spectral_norm`` in models that Accelerate's FSDP2 shards in bf16 or fp16: its buffers stay in float32.

FSDP1 cast them with the weights that they are multiplied by, and so does ``prepare_fully_shard``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fsdp_migrate.adapters.engine.claims import ACCELERATE
from fsdp_migrate.adapters.engine.shared_keys import CAST_BUFFERS
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "spectral-norms"
CODES = ("FM343",)

_ITS_NAMES = re.compile(r"^torch\.nn\.utils\.(?:parametrizations\.|spectral_norm\.)?spectral_norm$")
_MEANT = (
    f"in mixed precision {ACCELERATE['casts_no_buffers'].says}. Where it shards this layer's model in bf16 "
    f"or fp16, {CAST_BUFFERS.format('bfloat16')}"
)


def find(source: Source) -> Iterator[Found]:
    """Find where these layers are made, in projects that Accelerate shards and that speak of bf16 or fp16."""
    for call in source.calls if source.links.has_spectral_norms else ():
        if any(map(_ITS_NAMES.match, source.index.qualified(call.func))):
            yield Found("FM343", call, _MEANT, "commented")
