"""fvcore's Checkpointer, as finding FM333 has it: it saves parts of FSDP2's model, and loads no whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from tests.frameworks import fvcore_bodies
from tests.ranks import run_ranks


if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("is_fsdp1", [True, False])
def test_it_saves_and_loads_by_the_models_own_state(tmp_path: Path, *, is_fsdp1: bool) -> None:
    state = {"weight": torch.arange(8.0).reshape(2, 4), "bias": torch.ones(2)}
    torch.save({"model": state}, tmp_path / "whole.pth")
    whole = str(tmp_path / "whole.pth")
    for seen in run_ranks(fvcore_bodies.save_and_load, str(tmp_path), whole, is_fsdp1):
        assert seen["is_dtensor"] is not is_fsdp1
        assert ("DTensor" in seen["raised"]) is not is_fsdp1
        assert seen["loaded"] == state["weight"].tolist()
