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


def test_imports_of_what_torch_no_longer_has_do_not_stay_as_they_are() -> None:
    home = "from torch.distributed.fsdp.wrap import"
    source = f"{home} (\n    default_auto_wrap_policy,\n    wrap,\n)\n"
    today = "size_based_auto_wrap_policy as default_auto_wrap_policy"
    assert turned(source, header="") == source.replace("default_auto_wrap_policy", today)
    # Of one that is in `__all__` too, and not of one that is tried.
    source = (
        f"{home} default_auto_wrap_policy as policy\n__all__ = ['policy']\nrun(auto_wrap_policy=policy)\n"
    )
    assert f"{home} size_based_auto_wrap_policy as policy\n" in turned(source, header="")
    source = f"try:\n    {home} default_auto_wrap_policy\nexcept ImportError:\n    pass\n"
    assert turned(source, header="") == source
    source = "from torch.distributed.fsdp.flatten_params_wrapper import FlatParameter, Two, used\nused()\n"
    after = turned(source, header="")
    assert "take `FlatParameter` out of the import" in after
    assert "take `Two` out of the import" in after
    assert "`used`" not in after
