"""Files beside a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from fsdp_migrate.checkpoint_convert import (
    convert_checkpoint,
)
from fsdp_migrate.errors import PlanError
from tests.checkpoint.damage import _Foreign, refuse
from tests.checkpoint.samples import PLAIN, copy_of, save_with_torch


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


def test_a_file_beside_that_asks_for_a_class_is_named(tmp_path: Path) -> None:
    source = copy_of(PLAIN, tmp_path)
    torch.save({"mine": _Foreign()}, source / "training_args.bin")
    report = convert_checkpoint(source, tmp_path / "out")
    (finding,) = [found for found in report.findings if found.code == "FM285"]
    assert finding.subject == "training_args.bin"
    assert "_Foreign" in finding.message


def test_an_unknown_class_beside_names_that_must_change_is_refused(tmp_path: Path) -> None:
    state = {
        "model": {"_orig_mod.w": torch.ones(4, 2)},
        "optim": {
            "state": {"_orig_mod.w": {"exp_avg": torch.ones(4, 2)}},
            "param_groups": [{"params": ["_orig_mod.w", _Foreign()]}],
        },
    }
    source = save_with_torch(state, tmp_path / "source")
    refuse(source, tmp_path, "FM224.*_Foreign", PlanError)


def test_names_of_fsdp1_in_a_file_beside_are_told(tmp_path: Path) -> None:
    source = copy_of(PLAIN, tmp_path)
    averages = {f"blocks.{number}._fsdp_wrapped_module.up.weight": torch.ones(2) for number in range(6)}
    torch.save({"callbacks": {"EMA": {"weights": averages}}}, source / "meta.pt")
    torch.save({"names": ["_fsdp_wrapped_module._flat_param"]}, source / "ema.pt")
    report = convert_checkpoint(source, tmp_path / "out")
    told = {found.subject: found for found in report.findings if found.code == "FM280"}
    assert told.keys() == {"meta.pt", "ema.pt"}
    assert "`blocks.0._fsdp_wrapped_module.up.weight`" in told["meta.pt"].message
    assert "and 2 more" in told["meta.pt"].message
    assert ["piece of the rank" in told[name].message for name in ("meta.pt", "ema.pt")] == [False, True]
    assert (tmp_path / "out" / "meta.pt").read_bytes() == (source / "meta.pt").read_bytes()


def test_names_that_fsdp2_has_too_are_not_told(tmp_path: Path) -> None:
    source = copy_of(PLAIN, tmp_path)
    kept = {"blocks.0.up.weight": torch.ones(2), "note": "of FSDP1, with _fsdp_wrapped_module", 3: "x"}
    torch.save({"callbacks": {"EMA": kept}, "_orig_mod.up.weight": 1}, source / "meta.pt")
    assert "FM280" not in {found.code for found in convert_checkpoint(source, tmp_path / "out").findings}
