"""Words by which a file shards a model, or has a framework shard it."""

from __future__ import annotations

import re
from typing import Final


_SHARDS: Final = re.compile(
    r"\b(?:FSDPStrategy|FullyShardedDataParallel|FullyShardedDataParallelPlugin|ModelParallelStrategy"
    r"|fully_shard|prepare_fully_shard)\b|\bDistributedType\.FSDP\b|\bACCELERATE_USE_FSDP\b"
    r"|\bfsdp(?:_config)?=(?!None|False|['\"]['\"])|\bstrategy=['\"]fsdp"
)


def shards(text: str) -> bool:
    """Tell whether a source has words of what shards a model.

    Example:
        >>> shards("model = fully_shard(model)"), shards("model = Net()")
        (True, False)
    """
    return _SHARDS.search(text) is not None
