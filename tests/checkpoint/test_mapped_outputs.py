"""A map of parameters where other outputs are made: by several ranks, behind URLs, and after a kill."""

from __future__ import annotations

from typing import TYPE_CHECKING

import fsspec
import pytest
import torch

from fsdp_migrate import load_checkpoint
from fsdp_migrate.checkpoint_convert import CheckpointReader, convert_checkpoint, verify_checkpoints
from tests.checkpoint.execution.test_ranks import torchrun
from tests.checkpoint.planning.maps import MAP, MAPPED, RULES, New, stacked, state_of
from tests.checkpoint.samples import assert_nothing_left, contents, save_with_torch
from tests.checkpoint.test_resume import kill_at


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return save_with_torch(state_of()[1], tmp_path / "source")


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    (tmp_path / "moe.yaml").write_text(RULES)
    return tmp_path / "moe.yaml"


def test_torchrun_makes_what_one_process_makes(source: Path, rules: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    convert_checkpoint(source, out, output_options=MAPPED, world_size=3, checksums=True)
    wanted = contents(out)
    out.rename(tmp_path / "alone")
    done = torchrun(
        *("-m", "fsdp_migrate", "convert", str(source), str(out), "--map", str(rules)),
        *("--optimizer-class", "AdamW", "--world-size", "3", "--checksums"),
    )
    assert done.returncode == 0, done.stderr
    assert contents(out) == wanted
    assert_nothing_left(tmp_path, "alone", "out", "source", "moe.yaml")


def test_behind_urls(source: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.put(str(source), "/mapped/old", recursive=True)
    try:
        convert_checkpoint("memory://mapped/old", "memory://mapped/new", output_options=MAPPED, world_size=3)
        assert verify_checkpoints("memory://mapped/old", "memory://mapped/new", map=MAP).is_same
        expected = stacked(state_of()[1], None)
        model = New()
        load_checkpoint("memory://mapped/old", model, map=MAP, weights_only=True)
        state = model.state_dict()
        assert all(torch.equal(state[name], value) for name, value in expected.items())
        names = CheckpointReader("memory://mapped/old", map=MAP).read_metadata().state_dict_metadata
        assert "model.mlp.experts.gate_up_proj" in names
    finally:
        memory.rm("/mapped", recursive=True)


def test_killed_at_every_moment(source: Path, rules: Path, tmp_path: Path) -> None:
    """A new tensor has many sources, of which a killed run has written a part."""
    wish = {"map": str(rules), "world_size": 2}
    (found,) = kill_at(source, tmp_path / "work", [wish], again=True, every=7)
    assert found["wrong"] == []
    assert found["moments"] >= 4
