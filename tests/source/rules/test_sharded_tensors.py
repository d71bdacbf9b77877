"""``ShardedTensor`` where FSDP1 is known."""

from __future__ import annotations

import pytest

from fsdp_migrate.source import scan_source
from tests.source.samples import found_comments


pytestmark = pytest.mark.any_torch


def test_a_sharded_tensor_is_said_where_fsdp1_is_known() -> None:
    use = (
        "from torch.distributed._shard.sharded_tensor import ShardedTensor\n\n\n"
        "def local(item: ShardedTensor):\n"
        "    return item.local_shards() if isinstance(item, ShardedTensor) else item\n"
    )
    assert found_comments(use) == {("FM421", 5)}
    assert not scan_source(use)
