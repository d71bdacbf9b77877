"""Flat parameters that describe themselves."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
import torch

from fsdp_migrate.checkpoint_convert import convert_checkpoint, inspect_checkpoint
from fsdp_migrate.errors import CheckpointMismatchError
from tests.checkpoint.samples import load_with_torch
from tests.rank_bodies.sources import RankNet


if TYPE_CHECKING:
    from pathlib import Path

    from tests.checkpoint.rank_sources import RankSources


def test_flat_parameters_that_describe_themselves(rank_sources: RankSources, tmp_path: Path) -> None:
    source = tmp_path / "olmo"
    shutil.copytree(rank_sources.folder / "plain" / "olmo", source)
    report = convert_checkpoint(source, tmp_path / "out")
    assert "FM240" in [f.code for f in report.findings]
    loaded = load_with_torch(tmp_path / "out")
    expected = rank_sources.expected["plain"]
    parameters = {name for name, _ in RankNet().named_parameters()}
    assert {*loaded["model"]} == parameters
    for name in parameters:
        assert torch.equal(loaded["model"][name], expected[f"model.{name}"])
        for moment in ("exp_avg", "exp_avg_sq", "step"):
            assert torch.equal(
                loaded["optimizer"]["state"][name][moment], expected[f"optimizer.{name}.{moment}"]
            )
    assert loaded["optimizer"]["param_groups"][0]["params"] == [n for n, _ in RankNet().named_parameters()]
    assert loaded["train"] == {"epoch": 3}
    (source / "model" / "rank1.pt").unlink()
    shutil.copy(source / "model" / "rank0.pt", source / "model" / "rank1.pt")
    with pytest.raises(CheckpointMismatchError, match=r"overlap|are in no chunk"):
        inspect_checkpoint(source)
