"""Two names that would become one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from fsdp_migrate.errors import PlanError
from tests.checkpoint.damage import refuse
from tests.checkpoint.samples import (
    save_with_torch,
)


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


def test_names_that_collide_are_refused_with_both(tmp_path: Path) -> None:
    state = {"model": {"w": torch.ones(2), "_orig_mod.w": torch.ones(2), "v": torch.ones(1)}}
    save_with_torch(state, tmp_path / "twice")
    message = refuse(tmp_path / "twice", tmp_path, "FM221", PlanError)
    assert "`model.w`" in message
    assert "`model._orig_mod.w`" in message
