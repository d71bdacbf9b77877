"""Words of FSDP1's arguments."""

from __future__ import annotations

import pytest

from tests.source.samples import IMPORTS, turned


pytestmark = pytest.mark.any_torch


def test_names_of_torch_1_11_are_those_of_today() -> None:
    header = f"{IMPORTS}from torch.distributed.fsdp.wrap import default_auto_wrap_policy\n\n"
    after = turned("model = FSDP(net, fsdp_auto_wrap_policy=default_auto_wrap_policy)\n", header)
    assert 'prepare_fully_shard(net, {"auto_wrap_policy": size_based_auto_wrap_policy})' in after
    assert "default_auto_wrap_policy" not in after.replace('"auto_wrap_policy"', "")
