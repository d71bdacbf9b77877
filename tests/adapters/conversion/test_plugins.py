"""Accelerate's plugin that a config describes is no mapping of FSDP1's own arguments."""

from __future__ import annotations

import pytest

from fsdp_migrate.adapters.conversion.text import convert_text
from fsdp_migrate.errors import NothingToConvertError


pytestmark = pytest.mark.any_torch


PLUGIN = (
    "accelerator:\n  _target_: accelerate.Accelerator\n  fsdp_plugin:\n"
    "    _target_: accelerate.utils.FullyShardedDataParallelPlugin\n    sharding_strategy: FULL_SHARD\n"
)


def test_what_becomes_of_a_plugin() -> None:
    with pytest.raises(NothingToConvertError) as caught:
        convert_text(f"{PLUGIN}    use_orig_params: true\n")
    said = str(caught.value)
    assert "`accelerator.fsdp_plugin` makes Accelerate's FullyShardedDataParallelPlugin" in said
    assert "fsdp_version: 2" in said
    assert "prepare_fully_shard" not in said


def test_a_plugin_of_fsdp2_is_left_alone() -> None:
    with pytest.raises(NothingToConvertError) as caught:
        convert_text(f"{PLUGIN}    fsdp_version: 2\n")
    assert "write `fsdp_version: 2`" not in str(caught.value)
