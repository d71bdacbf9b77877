"""A real Composer run under FSDP1 goes on, from its converted checkpoint, under Composer's own FSDP2."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import pytest
import torch

from fsdp_migrate import convert_checkpoint, verify_checkpoints
from tests.rank_bodies import composer_runs
from tests.ranks import run_ranks


if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.composer
@pytest.mark.parametrize("world_size", [None, 3])
def test_the_losses_are_those_of_the_fsdp1_continuation(tmp_path: Path, world_size: int | None) -> None:
    """The second conversion writes every tensor anew, in three pieces, which two ranks then read."""
    saved, converted = tmp_path / "fsdp1", tmp_path / "converted"
    reference = run_ranks(composer_runs.train, str(saved), timeout=400)
    assert composer_runs.checkpoints_in(str(saved)) == ["ep0-ba3", "ep0-ba6"]

    report = convert_checkpoint(saved / "ep0-ba3", converted, world_size=world_size)
    assert report.action == ("rewrite" if world_size else "relink")
    assert verify_checkpoints(saved / "ep0-ba3", converted).is_same

    resumed = functools.partial(composer_runs.train, str(saved), fsdp2_from=str(converted))
    for before, after in zip(reference, run_ranks(resumed, timeout=400), strict=True):
        assert len(before["losses"]) == composer_runs.STEPS
        assert after["losses"] == before["losses"][composer_runs.SAVE_AT :]
        assert after["parameters"].keys() == before["parameters"].keys()
        for name, expected in before["parameters"].items():
            assert torch.equal(after["parameters"][name], expected), name
