"""What of a checkpoint is loaded where a part is missing, and what is said of the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from fsdp_migrate import load_checkpoint
from fsdp_migrate.checkpoint_convert import inspect_checkpoint
from fsdp_migrate.checkpoint_convert.loading.advice import advise_loading
from fsdp_migrate.errors import CheckpointMismatchError
from tests.checkpoint.samples import save_with_torch


if TYPE_CHECKING:
    from pathlib import Path


STATE = {
    "optimizer": {
        "state": {
            "weight": {"momentum_buffer": torch.full((1, 2), 3.0)},
            "bias": {"momentum_buffer": torch.full((1,), 3.0)},
        },
        "param_groups": [{"lr": 0.5, "momentum": 0.9, "params": ["weight", "bias"]}],
    }
}


@pytest.fixture
def model() -> nn.Module:
    return nn.Linear(2, 1)


@pytest.fixture
def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def moments(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, float]:
    states = {name: optimizer.state.get(param, {}) for name, param in model.named_parameters()}
    return {name: own["momentum_buffer"].mean().item() for name, own in states.items() if own}


def test_an_optimizer_in_a_folder_of_its_own_is_loaded_alone(
    model: nn.Module, optimizer: torch.optim.Optimizer, tmp_path: Path
) -> None:
    save_with_torch(STATE, tmp_path / "optim")
    with pytest.raises(CheckpointMismatchError, match=r"no model is in the checkpoint, an optimizer alone"):
        load_checkpoint(tmp_path / "optim", model, optimizer)
    before = {name: param.clone() for name, param in model.named_parameters()}
    report = load_checkpoint(tmp_path / "optim", model, optimizer, strict=False)
    assert moments(model, optimizer) == {"weight": 3.0, "bias": 3.0}
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert all(torch.equal(param, before[name]) for name, param in model.named_parameters())
    assert "FM432" in [finding.code for finding in report.findings]
    assert advise_loading(inspect_checkpoint(tmp_path / "optim")).call.endswith("optimizer, strict=False)")


@pytest.mark.parametrize(
    ("names", "is_adapter"),
    [
        (("layers.0.q.lora_A", "layers.0.q.lora_B.default.weight"), True),
        (("layers.0.adapter.up.weight",), True),
        (("layers.0.q.lora_A", "layers.0.q.weight"), False),
        (("explorations.weight",), False),
    ],
)
def test_an_adapter_alone_is_loaded_into_a_model_that_has_more(
    names: tuple[str, ...], tmp_path: Path, *, is_adapter: bool
) -> None:
    torch.save({"model": {name: torch.ones(2) for name in names}}, tmp_path / "state.pt")
    call = advise_loading(inspect_checkpoint(tmp_path / "state.pt")).call
    assert call.endswith("model, strict=False)" if is_adapter else "model)")


def test_the_state_of_a_parameter_that_is_not_loaded_is_said(
    model: nn.Module, optimizer: torch.optim.Optimizer, tmp_path: Path
) -> None:
    torch.save(STATE | {"model": {"bias": torch.zeros(1)}}, tmp_path / "state.pt")
    report = load_checkpoint(tmp_path / "state.pt", model, optimizer, strict=False)
    assert moments(model, optimizer) == {"bias": 3.0}
    assert any("Not loaded: the optimizer's state of `weight`" in each.message for each in report.findings)


def test_what_else_is_asked_for_comes_with_the_weights_alone(
    model: nn.Module, optimizer: torch.optim.Optimizer, tmp_path: Path
) -> None:
    state = {"weight": torch.full((1, 2), 5.0), "bias": torch.zeros(1)}
    save_with_torch({**STATE, "model": state, "meta": {"step": 7}}, tmp_path / "dcp")
    report = load_checkpoint(tmp_path / "dcp", model, optimizer, extra={"meta": None}, weights_only=True)
    assert report.values == {"meta": {"step": 7}}
    assert model.state_dict()["weight"].mean().item() == 5.0
    assert moments(model, optimizer) == {}
    with pytest.raises(CheckpointMismatchError, match="`absent`, asked for in `extra`, is not there"):
        load_checkpoint(tmp_path / "dcp", model, extra={"absent": None}, weights_only=True)
    # Nobody asks for it: the rest is not looked at.
    assert "FM431" not in [
        each.code for each in load_checkpoint(tmp_path / "dcp", model, weights_only=True).findings
    ]
