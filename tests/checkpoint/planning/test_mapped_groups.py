"""Groups of optimizers under a map."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch

from fsdp_migrate import load_checkpoint
from fsdp_migrate.checkpoint_convert import (
    OutputOptions,
    SourceOptions,
    convert_checkpoint,
    verify_checkpoints,
)
from fsdp_migrate.checkpoint_convert.maps.own_files import parse_map
from fsdp_migrate.cli import main
from fsdp_migrate.errors import CheckpointError, PlanError
from tests.checkpoint.planning.maps import MAP, MAPPED, RULES, New, Old, stacked, state_of
from tests.checkpoint.samples import DATA, load_with_torch, save_with_torch


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


pytestmark = pytest.mark.any_torch


@pytest.mark.parametrize("name", ["torch-2.1.2/flat.dcp", "torch-2.3.1/mesh.dcp"])
def test_groups_that_are_one_value(name: str, tmp_path: Path) -> None:
    """torch before 2.4 stores all groups as one value; here ranks of FSDP1 saved them."""
    rules = parse_map(
        json.dumps([{"from": "blocks.*.up.weight", "stack": 0, "transpose": [0, 1], "to": "ups"}]), "it"
    )
    before, path = load_with_torch(DATA / name), DATA / name
    convert_checkpoint(path, tmp_path / "out", output_options=OutputOptions(map=rules))
    found = load_with_torch(tmp_path / "out")
    olds = [f"blocks.{number}.up.weight" for number in range(2)]
    assert torch.equal(found["model"]["ups"], torch.stack([before["model"][old].T for old in olds]))
    moments = [before["optimizer"]["state"][old]["exp_avg_sq"].T for old in olds]
    assert torch.equal(found["optimizer"]["state"]["ups"]["exp_avg_sq"], torch.stack(moments))
    (group,), (old_group,) = found["optimizer"]["param_groups"], before["optimizer"]["param_groups"]
    names = [n for n in old_group["params"] if n != olds[1]]
    assert group == {**old_group, "params": ["ups" if n == olds[0] else n for n in names]}
    assert verify_checkpoints(path, tmp_path / "out", map=rules).is_same


def test_numbers_of_an_optimizer(tmp_path: Path) -> None:
    """A file with `optimizer.state_dict()` itself: the model in it gives the names, and then the map."""
    made = state_of()
    model: Any = made[0]
    state = made[1]
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    names = [name for name, _ in model.named_parameters()]
    torch.save({"model": state["model"], "optimizer": optimizer.state_dict()}, tmp_path / "state.pt")
    given = SourceOptions(parameter_names=tuple(names))
    new: Any = New()
    optimizers = torch.optim.AdamW(new.parameters())
    load_checkpoint(tmp_path / "state.pt", new, optimizers, map=MAP, options=given)
    moments = optimizers.state[new.mlp.experts.down_proj]["exp_avg"]
    expected = [optimizer.state[e.w2.weight]["exp_avg"] for e in model.moe.experts]
    assert torch.equal(moments, torch.stack(expected))
    weights = stacked(state, None)["mlp.experts.gate_up_proj"]
    assert torch.equal(new.mlp.experts.gate_up_proj, weights)


def _apart(model: Any) -> torch.optim.Optimizer:
    first, *rest = model.parameters()
    groups = [[first], [p for p in rest if p is not model.moe.experts[3].w1.weight]]
    groups[0].append(model.moe.experts[3].w1.weight)
    return torch.optim.AdamW([{"params": group} for group in groups])


def _frozen(model: Any) -> torch.optim.Optimizer:
    model.moe.experts[3].w1.requires_grad_(False)
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])


def _adafactor(model: Old) -> torch.optim.Optimizer:
    return torch.optim.Adafactor(model.parameters())


class _EightBit(torch.optim.Optimizer):
    """Keeps what bitsandbytes' 8-bit Adam keeps."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter] = {
                "state1": torch.zeros_like(parameter, dtype=torch.uint8),
                "absmax1": torch.ones(7),
            }


class _Muon(_EightBit):
    """Keeps what torch.optim.Muon keeps, which only newer releases of torch have."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.param_groups[0]["ns_steps"] = 5
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter] = {"momentum_buffer": torch.zeros_like(parameter)}


@pytest.mark.alike
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (_apart, "are in the groups [0, 1]"),
        (_frozen, "the optimizer knows 21 of the 22 parameters that become one"),
        (
            _adafactor,
            "`row_var` of `moe.experts.0.w1.weight`, `moe.experts.1.w1.weight` and 20 more has shape",
        ),
        (lambda model: _EightBit(model.parameters()), "`absmax1` of"),
        (lambda model: _Muon(model.parameters()), "is Muon's"),
    ],
)
def test_optimizers_that_cannot_follow(
    make: Callable[[Old], torch.optim.Optimizer], words: str, tmp_path: Path
) -> None:
    path = save_with_torch(state_of(make)[1], tmp_path / "dcp")
    with pytest.raises(PlanError) as caught:
        convert_checkpoint(path, tmp_path / "out", output_options=MAPPED)
    assert {finding.code for finding in caught.value.findings} == {"FM296"}
    assert words in str(caught.value)
    assert "--without-optimizer" in str(caught.value)
    convert_checkpoint(path, tmp_path / "out", output_options=MAPPED, without_optimizer=True)
    assert verify_checkpoints(path, tmp_path / "out", map=MAP, without_optimizer=True).is_same


@pytest.mark.slow
def test_steps_that_differ(tmp_path: Path) -> None:
    state = state_of()[1]
    state["optim"]["state"]["moe.experts.3.w3.weight"]["step"] += 1
    path = save_with_torch(state, tmp_path / "dcp")
    words = r"FM296 .*experts\.0\.w1\.weight\.step` and .*experts\.3\.w3\.weight\.step` differ"
    with pytest.raises(PlanError, match=words):
        convert_checkpoint(path, tmp_path / "out", output_options=MAPPED)
    assert not (tmp_path / "out").exists()
    with pytest.raises(PlanError, match=words):
        verify_checkpoints(path, path, map=MAP)
    new = New()
    with pytest.raises(CheckpointError, match=words):
        load_checkpoint(path, new, torch.optim.AdamW(new.parameters()), map=MAP)
    (tmp_path / "mine.yaml").write_text(RULES)
    assert main(["convert", str(path), "--map", str(tmp_path / "mine.yaml"), "--dry-run"]) == 1
