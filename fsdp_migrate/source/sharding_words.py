"""Words by which a file shards a model, or has a framework shard it."""

from __future__ import annotations

import re
from typing import Final


NAMES: Final = frozenset(
    {
        *("FSDPStrategy", "FullyShardedDataParallel", "FullyShardedDataParallelPlugin"),
        *("ModelParallelStrategy", "fully_shard", "prepare_fully_shard"),
    }
)
"""Classes and functions that do."""
_SHARDS: Final = re.compile(
    rf"\b(?:{'|'.join(sorted(NAMES))})\b|\bDistributedType\.FSDP\b|\bACCELERATE_USE_FSDP\b"
    r"|\bfsdp(?:_config)?=(?!None|False|['\"]['\"])|\bstrategy=['\"]fsdp"
)


def shards(text: str) -> bool:
    """Tell whether a source has words of what may shard a model.

    Example:
        >>> shards("model = fully_shard(model)"), shards("model = Net()")
        (True, False)
    """
    return _SHARDS.search(text) is not None
