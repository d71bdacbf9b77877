"""timm's groups by dimensions, as finding FM318 has them: all in one under FSDP1, as on one device now."""

from __future__ import annotations

from tests.frameworks import timm_bodies
from tests.ranks import run_ranks


def test_timm_groups_flat_parameters_otherwise() -> None:
    for rank in run_ranks(timm_bodies.group):
        assert len(rank) == 3
        for groups in rank.values():
            assert groups["plain"] == [(0.0, 11), (0.1, 6)]
            assert groups["prepared"] == groups["plain"]
            # It leaves a group without parameters out.
            assert groups["FSDP1"] == [(0.0, 17)]
            assert groups["flat"] == [(0.0, 1)]
