"""Imports that nothing uses."""

from __future__ import annotations

import pytest

from fsdp_migrate.source import scan_source
from tests.source.samples import turned


pytestmark = pytest.mark.any_torch


def test_imports_that_nothing_uses_are_told_apart() -> None:
    source = "from torch.distributed.fsdp import FullyShardedDataParallel as F, StateDictType\nF(net)\n"
    found = [(use.code, use.action) for use in scan_source(source)]
    assert found == [("FM329", "rewritten"), ("FM329", "kept"), ("FM301", "rewritten")]
    assert turned(source, header="").startswith("from torch.distributed.fsdp import StateDictType\n")
