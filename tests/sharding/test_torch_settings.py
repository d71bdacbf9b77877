"""torch's own settings: custom communication works in a prepared model; two others are not what FSDP1 did."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ranks import run_ranks
from tests.sharding import torch_settings_bodies as settings


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    return run_ranks(settings.run)


def test_communication_of_ones_own_trains_the_same(found: list[dict[str, Any]]) -> None:
    for rank in found:
        cases = ("plain", "keyword", "join") if settings.HAS_CUSTOM_COMMUNICATION else ()
        for case in cases:
            assert rank[case]["same"], case
            assert min(rank[case]["gathers"], rank[case]["reductions"]) > 0, case
        assert rank.get("memory", "same") == "same"


def _skipped(names: list[str]) -> list[str]:
    """Return the parameters of the unit that the last step skipped."""
    return [name for name in names if name.startswith("second.")]


def test_torchs_setting_reduces_a_unit_that_a_step_skips_and_fsdp1_did_not(
    found: list[dict[str, Any]],
) -> None:
    """So AdamW would decay it: `param_groups.reduce_whole` stays in its place."""
    for rank in found if settings.HAS_UNUSED else []:
        runs = rank["unused"]
        assert _skipped(runs["FSDP1"]["with gradient"]) == _skipped(runs["prepared"]["with gradient"]) == []
        assert len(_skipped(runs["torch's setting"]["with gradient"])) == 7
        assert len(_skipped(runs["both"]["with gradient"])) == 7
        assert runs["prepared"]["losses"] == runs["FSDP1"]["losses"]


def test_torchs_replicas_have_no_gradients_where_fsdp1_had_zeros(found: list[dict[str, Any]]) -> None:
    """So NO_SHARD stays a mesh of one shard."""
    for rank in found if settings.HAS_UNUSED else []:
        runs = rank["replicated"]
        assert runs["prepared"] == runs["FSDP1"]
        assert runs["replicate"]["losses"][0] == runs["FSDP1"]["losses"][0]
        missing = {*runs["FSDP1"]["with gradient"]} - {*runs["replicate"]["with gradient"]}
        assert {"first.lone", "first.experts.0.weight"} <= missing
