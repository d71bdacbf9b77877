"""What ``get_extra_state`` returned goes to ``set_extra_state``, whole and as it was."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from fsdp_migrate.checkpoint_convert import convert_checkpoint, verify_checkpoints
from tests.checkpoint import extra_states_bodies as extra_states
from tests.ranks import run_ranks


if TYPE_CHECKING:
    from pathlib import Path

    Saved = tuple[Path, dict[str, torch.Tensor]]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    folder = tmp_path_factory.mktemp("extra")
    return folder, run_ranks(extra_states.save_fsdp1, str(folder))[0]


@pytest.mark.parametrize("source", ["sharded", "full.pt"])
def test_fsdp2_gives_each_module_what_it_had(source: str, saved: Saved, tmp_path: Path) -> None:
    folder, weights = saved
    report = convert_checkpoint(folder / source, tmp_path / "out", to="torch", world_size=3)
    divided = {entry.key for entry in report.plan.tensors if len(entry.boxes) > 1}
    assert divided == {f"model.{name}" for name in weights}
    assert verify_checkpoints(folder / "sharded", tmp_path / "out").is_same
    for found in run_ranks(extra_states.load_fsdp2, str(tmp_path / "out")):
        assert all(torch.equal(found[name], value) for name, value in weights.items())
        assert torch.equal(found["tensor"], torch.arange(1.0, 6.0))
        assert found["dict"]["amax"] == [1.0, 2.0]
        assert torch.equal(found["dict"]["scale"], torch.ones(3))
        assert torch.equal(found["bytes"]["scale"], torch.full((2,), 3.0))


def test_a_cast_of_weights_leaves_it_alone(saved: Saved, tmp_path: Path) -> None:
    folder, weights = saved
    report = convert_checkpoint(folder / "full.pt", tmp_path / "out", to="torch", dtype="bf16")
    assert {entry.key for entry in report.plan.tensors if entry.is_cast} == {f"model.{n}" for n in weights}
