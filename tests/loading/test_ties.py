"""Names of one tensor of a model for which a checkpoint holds several values, or the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from fsdp_migrate import load_checkpoint, prepare_fully_shard
from fsdp_migrate.errors import CheckpointMismatchError
from tests.checkpoint.samples import save_with_torch
from tests.ranks import run_ranks


if TYPE_CHECKING:
    from pathlib import Path

    from torch.distributed.tensor import DTensor


Flat = dict[str, Any]


class Shared(nn.Module):
    """One weight and one buffer with two names each."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.last.weight = self.first.weight
        scale = torch.ones(4)
        self.first.register_buffer("scale", scale)
        self.last.register_buffer("scale", scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(self.first(x)) * self.first.scale
        return out


def torn_state(*, of: str) -> Flat:
    """Return a state whose two names of a parameter, or of a buffer, hold other values."""
    state = {name: torch.ones_like(value) for name, value in Shared().state_dict().items()}
    if of:
        state[of] = torch.arange(state[of].numel()).view_as(state[of]) + 1.0
    return state


@pytest.mark.parametrize("name", ["last.weight", "last.scale"])
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_names_of_one_tensor_that_hold_other_values_are_refused(tmp_path: Path, name: str, kind: str) -> None:
    saved = {"model": torn_state(of=name)}
    if kind == "file":
        torch.save(saved, tmp_path / "state")
    else:
        save_with_torch(saved, tmp_path / "state")
    model = Shared()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(CheckpointMismatchError, match=rf"`{name}` is one parameter.*`first\."):
        load_checkpoint(tmp_path / "state", model)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    report = load_checkpoint(tmp_path / "state", model, strict=False)
    assert [found.subject for found in report.findings if found.code == "FM273"] == [name]
    # As torch loads it, and FSDP1 did: the last name counts.
    for key in (name, name.replace("last", "first")):
        assert torch.equal(model.state_dict()[key], saved["model"][name])
    # By other names in the checkpoint too.
    renamed = {key.replace("last", "end"): value for key, value in saved["model"].items()}
    torch.save({"model": renamed}, tmp_path / "renamed.pt")
    with pytest.raises(CheckpointMismatchError, match="other values for each"):
        load_checkpoint(tmp_path / "renamed.pt", Shared(), rename=[r"^end\.=last."])


def test_names_of_one_tensor_that_hold_the_same_are_loaded(tmp_path: Path) -> None:
    save_with_torch({"model": torn_state(of="")}, tmp_path / "state")
    report = load_checkpoint(tmp_path / "state", Shared())
    assert "FM273" not in {found.code for found in report.findings}


def loaded(path: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weight that FSDP1 loads of a file, and the one that is loaded without ``strict``."""
    inner = Shared()
    fsdp1 = FSDP(inner, device_id=torch.device("cpu"), use_orig_params=True)
    fsdp1.load_state_dict(torch.load(path)["model"])
    with FSDP.summon_full_params(fsdp1):
        weight = inner.first.weight.detach().clone()
    ours = Shared()
    prepare_fully_shard(ours, {})
    load_checkpoint(path, ours, strict=False)
    return weight, cast("DTensor", ours.first.weight).full_tensor().detach()


def test_fsdp1_takes_the_last_name_of_a_tie_that_a_checkpoint_lacks(tmp_path: Path) -> None:
    state = torn_state(of="last.weight")
    torch.save({"model": state}, tmp_path / "state.pt")
    for fsdp1, ours in run_ranks(loaded, str(tmp_path / "state.pt")):
        assert torch.equal(fsdp1, state["last.weight"])
        assert torch.equal(ours, fsdp1)
