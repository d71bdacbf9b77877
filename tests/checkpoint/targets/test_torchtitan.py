"""Groups divided by parameter, as torchtitan writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from fsdp_migrate.checkpoint_convert import (
    convert_checkpoint,
)
from tests.checkpoint.samples import DATA, codes, expected, load_with_torch


if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", ["torch-2.3.1/mesh.dcp", "torch-2.13.0/plain.dcp"])
def test_groups_are_divided_by_parameter_as_torch_flattens_them(name: str, tmp_path: Path) -> None:
    report = convert_checkpoint(DATA / name, tmp_path / "out", to="torchtitan")
    wanted = expected(DATA / name)
    state = load_with_torch(tmp_path / "out")
    for key, tensor in wanted["model"].items():
        assert torch.equal(state[key], tensor), key
    flat = {
        f"state.{parameter}.{moment}"
        for parameter, moments in wanted["optimizer"]["state"].items()
        for moment in moments
    }
    for group in wanted["optimizer"]["param_groups"]:
        for parameter in group["params"]:
            # Torch before 2.7 did not save the first, which later ones look for.
            for field, value in {"decoupled_weight_decay": False, **group}.items():
                if field != "params":
                    flat.add(f"param_groups.{parameter}.{field}")
                    assert state["optimizer"][f"param_groups.{parameter}.{field}"] == value
    assert state["optimizer"].keys() == flat
    assert "FM253" in codes(report)
