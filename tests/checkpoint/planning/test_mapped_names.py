"""Names under a map."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from fsdp_migrate.checkpoint_convert import (
    OutputOptions,
    convert_checkpoint,
    inspect_checkpoint,
    plan_conversion,
    verify_checkpoints,
)
from fsdp_migrate.checkpoint_convert.maps.own_files import parse_map
from fsdp_migrate.errors import PlanError
from tests.checkpoint.planning.maps import MAP, MAPPED, stacked, state_of
from tests.checkpoint.samples import load_with_torch, save_with_torch


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


def test_wrappers_and_module_come_off_as_ever(tmp_path: Path) -> None:
    state = state_of()[1]
    weights = {
        f"module.{n.replace('moe.', 'moe._fsdp_wrapped_module.')}": v for n, v in state["model"].items()
    }
    path = save_with_torch({"model": weights}, tmp_path / "dcp")
    convert_checkpoint(path, tmp_path / "out", output_options=MAPPED)
    found = load_with_torch(tmp_path / "out")["model"]
    expected = stacked(state, None)
    assert found.keys() == {*expected, "scale"}
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_renames_come_after_the_map(source: Path, tmp_path: Path) -> None:
    options = OutputOptions(map=MAP, renames=("^mlp=block",))
    convert_checkpoint(source, tmp_path / "out", output_options=options)
    assert "block.experts.down_proj" in load_with_torch(tmp_path / "out")["model"]
    assert verify_checkpoints(source, tmp_path / "out", map=MAP, renames=("^mlp=block",)).is_same


@pytest.mark.slow
def test_names_alone_are_relinked(source: Path, tmp_path: Path) -> None:
    rules = parse_map("- {from: moe, to: mlp}", "it")
    report = convert_checkpoint(source, tmp_path / "out", output_options=OutputOptions(map=rules))
    assert report.action == "relink"
    assert "mlp.experts.10.w2.weight" in load_with_torch(tmp_path / "out")["model"]
    assert verify_checkpoints(source, tmp_path / "out", map=rules).is_same


def test_names_that_meet(source: Path) -> None:
    rules = parse_map("- {from: gate.bias, to: gate.weight}", "it")
    with pytest.raises(PlanError, match=r"FM221 `model\.moe\.gate\.weight`"):
        plan_conversion(inspect_checkpoint(source), output_options=OutputOptions(map=rules))
