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
