"""One group of sharded and of plain parameters, of an optimizer that is made after sharding."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fsdp_migrate.torch_compat import fsdp2
from tests.ranks import run_ranks
from tests.sharding import mixed_groups_bodies as mixed


@pytest.mark.parametrize("way", ["ignored", "part"])
@pytest.mark.parametrize(
    ("kind", "options"),
    [("AdamW", {"foreach": True}), ("SGD", {"foreach": True, "momentum": 0.5}), ("AdamW", {"fused": True})],
)
def test_both_kinds_in_one_group_are_trained(way: str, kind: str, options: dict[str, Any]) -> None:
    if way == "ignored" and not fsdp2.HAS_IGNORED_PARAMS:
        pytest.skip("torch 2.6's fully_shard cannot ignore parameters")
    for unsharded, found, groups in run_ranks(mixed.train, way, kind, options):
        assert found.keys() == unsharded.keys()
        for name, tensor in unsharded.items():
            torch.testing.assert_close(found[name], tensor, msg=name)
        assert [(group["foreach"], group["fused"]) for group in groups] == [(False, False)]


def test_an_option_stays_where_its_kernels_get_one_kind() -> None:
    for found in run_ranks(mixed.step_what_mixes_not):
        assert set(found.values()) == {True}, found


def test_a_scaler_that_left_unscaling_to_a_fused_step_is_not_betrayed() -> None:
    for error in run_ranks(mixed.fused_under_a_scaler):
        assert "This AdamW is fused" in error
        assert "Build it with `fused=False`" in error
