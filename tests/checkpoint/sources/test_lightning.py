"""Genuine checkpoints of Lightning's FSDPStrategy; how they were made says the README beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from fsdp_migrate.checkpoint_convert import convert_checkpoint, inspect_checkpoint, verify_checkpoints
from tests.checkpoint.samples import LIGHTNING, assert_holds, load_with_torch


if TYPE_CHECKING:
    from pathlib import Path


KINDS = ("sharded.ckpt", "full.ckpt")
WANTED: dict[str, Any] = torch.load(LIGHTNING / "expected.pt", weights_only=True)


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_told_by_what_the_trainer_writes(kind: str) -> None:
    manifest = inspect_checkpoint(LIGHTNING / kind)
    assert manifest.framework == "lightning"
    assert [part.kind for part in manifest.parts if part.kind != "other"] == ["model", "optimizer"]
    assert not [finding for finding in manifest.findings if finding.fidelity == "refused"]


@pytest.mark.parametrize("kind", KINDS)
def test_torch_loads_what_the_ranks_held(kind: str, tmp_path: Path) -> None:
    convert_checkpoint(LIGHTNING / kind, tmp_path / "out", to="torch")
    state = load_with_torch(tmp_path / "out")
    assert_holds({"model": state["model"], "optimizer": state["optim"]}, WANTED)
    assert verify_checkpoints(LIGHTNING / kind, tmp_path / "out").is_same


@pytest.mark.parametrize("kind", KINDS)
def test_lightning_gets_its_own_state_back(kind: str, tmp_path: Path) -> None:
    """Also what is empty, and keys that are numbers: its loops and its schedulers look for both."""
    convert_checkpoint(LIGHTNING / kind, tmp_path / "out", to="lightning")
    state = load_with_torch(tmp_path / "out")
    assert_holds({"model": state["state_dict"], "optimizer": state["optimizer_0"]}, WANTED)
    meta = torch.load(tmp_path / "out" / "meta.pt", weights_only=True)
    source = LIGHTNING / (kind if kind == "full.ckpt" else f"{kind}/meta.pt")
    wanted = torch.load(source, weights_only=True)
    for name in ("state_dict", "optimizer_states"):
        wanted.pop(name, None)
    assert meta == wanted
    assert meta["loops"]["fit_loop"]["state_dict"] == {}
    assert meta["lr_schedulers"][0]["milestones"] == {1: 1, 3: 1}


def test_weights_that_a_callback_kept_have_fsdp2s_names(tmp_path: Path) -> None:
    """An average that a callback keeps under the names that FSDP1 showed is looked up by those of FSDP2."""
    state = torch.load(LIGHTNING / "full.ckpt", weights_only=True)
    weights = {"up._fsdp_wrapped_module.weight": torch.ones(2), "down.weight": torch.zeros(1)}
    state["callbacks"] = {"EMA": {"weights": weights, "by_number": {3: "c"}}}
    torch.save(state, tmp_path / "last.ckpt")
    convert_checkpoint(tmp_path / "last.ckpt", tmp_path / "out", to="lightning")
    kept = torch.load(tmp_path / "out" / "meta.pt", weights_only=True)["callbacks"]["EMA"]
    assert kept["weights"].keys() == {"up.weight", "down.weight"}
    assert torch.equal(kept["weights"]["up.weight"], torch.ones(2))
    assert kept["by_number"] == {3: "c"}
