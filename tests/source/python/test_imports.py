"""Imports that are taken out and left."""

from __future__ import annotations

import pytest

from fsdp_migrate.source import rewrite_source


pytestmark = pytest.mark.any_torch


def test_a_comment_stays_beside_the_name_that_it_is_about() -> None:
    header = (
        "from torch.distributed.fsdp import (\n"
        "    MixedPrecision,  # kept\n"
        "    FullyShardedDataParallel as FSDP,  # gone\n"
        ")\n"
    )
    after = rewrite_source(f"{header}m = FSDP(net, mixed_precision=MixedPrecision())\n")
    assert "    MixedPrecision,  # kept\n)\n" in after


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_what_is_added_stands_behind_torchs_own_and_on_no_long_line(end: str) -> None:
    header = (
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy\n"
        "import torch.nn as nn\nfrom torch import optim\n"
    )
    use = (
        "import os\n\nm = FSDP(net, ShardingStrategy.FULL_SHARD)\nm.clip_grad_norm_(1.0)\n"
        "o = FSDP.full_optim_state_dict(m, opt)\n"
        "with FSDP.summon_full_params(m):\n    print(m)\n"
    )
    short = rewrite_source(f"{header}{use}".replace("\n", end))
    assert f"import optim{end}from fsdp_migrate import prepare_fully_shard{end}" in short
    names = "clip_grad_norm_, full_optimizer_state_dict, summon_full_params"
    assert f"from fsdp_migrate.runtime import {names}{end}import os{end}" in short
    more = "with m.no_sync():\n    pass\nFSDP.set_state_dict_type(m, StateDictType.FULL_STATE_DICT)\n"
    long = rewrite_source(f"{header}{use}{more}FSDP.shard_full_optim_state_dict(o, m)\n".replace("\n", end))
    added = long.partition(f"from fsdp_migrate.runtime import ({end}")[2].partition(f"{end})")[0]
    assert {"    no_sync,", "    summon_full_params,"} <= set(added.split(end))
