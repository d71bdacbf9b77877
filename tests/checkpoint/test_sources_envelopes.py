"""States that people saved by hand: bare ones, under any names, several models and optimizers in one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from fsdp_migrate.checkpoint_convert import convert_checkpoint, inspect_checkpoint, verify_checkpoints
from fsdp_migrate.checkpoint_convert.manifest.options import SourceOptions
from fsdp_migrate.errors import PlanError
from fsdp_migrate.sharding.outlines import outline_model
from tests.checkpoint.envelopes import (
    BARE,
    MODEL,
    NUMBERED,
    OPTIMIZER,
    State,
    by_name,
    save,
    trained,
)
from tests.checkpoint.samples import load_with_torch


if TYPE_CHECKING:
    from pathlib import Path


OTHER, OTHER_NUMBERED = trained(3)
OTHER_OPTIMIZER = by_name(OTHER_NUMBERED, 3)

# What is saved; and where the models and optimizers are in it.
CASES: dict[str, tuple[State, list[str], list[str]]] = {
    "bare": (MODEL, ["(root)"], []),
    "bare, of names that are words of others": (
        {
            f"model.{name}" if "head" not in name else "lm_head.weight": tensor
            for name, tensor in MODEL.items()
        },
        ["(root)"],
        [],
    ),
    "bare, with a number beside": ({**MODEL, "epoch": 3}, ["(root)"], []),
    "state_dict": ({"state_dict": MODEL}, ["state_dict"], []),
    "module": ({"module": MODEL, "epoch": 2}, ["module"], []),
    "a name of the user's": ({"weights": MODEL, "iteration": 7}, ["weights"], []),
    "in an envelope": ({"model": {"net": MODEL, "config": {"dim": 4}}}, ["model.net"], []),
    "model_state_dict": (
        {"model_state_dict": MODEL, "optimizer_state_dict": OPTIMIZER, "epoch": 3, "loss": torch.tensor(0.3)},
        ["model_state_dict"],
        ["optimizer_state_dict"],
    ),
    "net and opt": ({"net": MODEL, "opt": OPTIMIZER}, ["net"], ["opt"]),
    "AppState": ({"app": {"model": MODEL, "optim": OPTIMIZER}}, ["app.model"], ["app.optim"]),
    "a scheduler and a step": (
        {
            "model": MODEL,
            "optimizer": OPTIMIZER,
            "lr_scheduler": {"last_epoch": 3, "_last_lr": [0.1]},
            "step": 5,
        },
        ["model"],
        ["optimizer"],
    ),
    "SGD without momentum": ({"model": MODEL, "optim": BARE}, ["model"], ["optim"]),
    "two models": (
        {"generator": MODEL, "discriminator": OTHER, "opt_g": OPTIMIZER, "opt_d": OTHER_OPTIMIZER},
        ["generator", "discriminator"],
        ["opt_g", "opt_d"],
    ),
    "a second model with a usual name": (
        {"model": MODEL, "critic": OTHER, "optim": OPTIMIZER, "critic_optim": by_name(OTHER_NUMBERED, 3)},
        ["model", "critic"],
        ["optim", "critic_optim"],
    ),
    "averaged weights": ({"net_a": MODEL, "ema": MODEL, "optim": OPTIMIZER}, ["net_a"], ["optim"]),
}


@pytest.mark.alike
@pytest.mark.parametrize("form", ["state.pt", "state.bin", "folder"])
@pytest.mark.parametrize("name", sorted(CASES))
def test_parts_are_told_and_survive(name: str, form: str, tmp_path: Path) -> None:
    state, models, optimizers = CASES[name]
    source = save(state, tmp_path / form)
    parts = inspect_checkpoint(source).parts
    assert [part.name for part in parts if part.kind == "model"] == models
    assert [part.name for part in parts if part.kind == "optimizer"] == optimizers

    convert_checkpoint(source, tmp_path / "out", to="torch")
    assert verify_checkpoints(source, tmp_path / "out").is_same
    loaded = load_with_torch(tmp_path / "out")
    wanted: Any = state
    for step in models[0].split(".") if models != ["(root)"] else []:
        wanted, loaded = wanted[step], loaded[step]
    for key in MODEL.keys() & wanted.keys():
        assert torch.equal(loaded[key], wanted[key])

    convert_checkpoint(source, tmp_path / "weights", weights_only=True)
    kept = inspect_checkpoint(tmp_path / "weights")
    assert kept.parts[0].kind == "model"
    own = sum(len(part.keys) for part in parts if part.kind == "model")
    assert len(kept.entries) == own


def test_two_models_and_their_optimizers_become_those_of_accelerate(tmp_path: Path) -> None:
    source = save(CASES["two models"][0], tmp_path / "gan.pt")
    convert_checkpoint(source, tmp_path / "out", to="accelerate")
    assert verify_checkpoints(source, tmp_path / "out").is_same
    second = load_with_torch(tmp_path / "out" / "pytorch_model_fsdp_1")["model"]
    assert torch.equal(second["emb.weight"], OTHER["emb.weight"])
    moments = load_with_torch(tmp_path / "out" / "optimizer_1")["optimizer"]["state"]
    assert torch.equal(moments["emb.weight"]["exp_avg"], OTHER_OPTIMIZER["state"]["emb.weight"]["exp_avg"])

    convert_checkpoint(tmp_path / "out", tmp_path / "back", to="torch")
    back = load_with_torch(tmp_path / "back")
    assert sorted(back) == ["model", "model_1", "optimizer", "optimizer_1"]


@pytest.mark.parametrize("to", ["composer", "lightning", "torchtitan", "hf"])
def test_stacks_of_one_model_refuse_two(to: str, tmp_path: Path) -> None:
    source = save(CASES["two models"][0], tmp_path / "gan.pt")
    with pytest.raises(PlanError, match=r"FM251 .*2 models"):
        convert_checkpoint(source, tmp_path / "out", to=to)


def named_state(out: Path, optimizer: str) -> State:
    state: State = load_with_torch(out)[optimizer]["state"]
    return state


def assert_same_moments(found: State, wanted: State) -> None:
    assert found.keys() == wanted["state"].keys()
    for name, moments in wanted["state"].items():
        assert torch.equal(found[name]["exp_avg"], moments["exp_avg"]), name


def test_numbers_get_the_names_of_the_model_that_they_fit(tmp_path: Path) -> None:
    """The running statistics between parameters are no candidates, and the other model has other shapes."""
    state = {"G": MODEL, "D": OTHER, "optG": NUMBERED, "optD": OTHER_NUMBERED}
    convert_checkpoint(save(state, tmp_path / "gan.pt"), tmp_path / "out")
    assert_same_moments(named_state(tmp_path / "out", "optG"), OPTIMIZER)
    assert_same_moments(named_state(tmp_path / "out", "optD"), OTHER_OPTIMIZER)


def test_numbers_that_fit_two_models_are_refused(tmp_path: Path) -> None:
    source = save({"G": MODEL, "D": MODEL, "optG": NUMBERED, "optD": NUMBERED}, tmp_path / "gan.pt")
    with pytest.raises(PlanError, match=r"FM234 `optG`: it fits 2 of the 2 models"):
        convert_checkpoint(source, tmp_path / "out")


def test_several_optimizers_of_one_model_are_named_together(tmp_path: Path) -> None:
    """Each by itself fits several layers; no parameter is in two of them, so together there is one way."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    parameters = list(model.parameters())
    optimizers = [torch.optim.Adam(parameters[:3]), torch.optim.Adam(parameters[3:])]
    for parameter in parameters:
        parameter.grad = torch.rand_like(parameter)
    for optimizer in optimizers:
        optimizer.step()
    states = [optimizer.state_dict() for optimizer in optimizers]
    source = save(
        {"state_dict": model.state_dict(), "optimizer_states": states, "epoch": 0}, tmp_path / "a.ckpt"
    )
    convert_checkpoint(source, tmp_path / "out", to="torch")
    found = load_with_torch(tmp_path / "out")["optim"]["state"]
    for (name, _), parameter in zip(model.named_parameters(), parameters, strict=True):
        moments = next(o.state[parameter] for o in optimizers if parameter in o.state)
        assert torch.equal(found[name]["exp_avg"], moments["exp_avg"])


def test_the_groups_of_a_given_optimizer_tell_what_shapes_do_not(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    first, second = model.parameters()
    groups: list[State] = [{"params": [second]}, {"params": [first], "lr": 0.5}]
    optimizer = torch.optim.Adam(groups, lr=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.rand_like(parameter)
    optimizer.step()
    source = save({"model": model.state_dict(), "optim": optimizer.state_dict()}, tmp_path / "a.pt")
    with pytest.raises(PlanError, match="FM234"):
        convert_checkpoint(source, tmp_path / "out")
    outline = outline_model(model, optimizer=optimizer)
    convert_checkpoint(source, tmp_path / "out", options=SourceOptions(model=outline))
    found = named_state(tmp_path / "out", "optim")
    assert torch.equal(found["0.weight"]["exp_avg"], optimizer.state[first]["exp_avg"])


@pytest.mark.parametrize(
    "kind", [torch.optim.Adafactor, torch.optim.Adadelta, torch.optim.RMSprop, torch.optim.ASGD]
)
def test_state_of_rows_and_columns_tells_the_shape(kind: Any, tmp_path: Path) -> None:
    """Without it the parameter could as well be the buffer before it."""
    model = nn.Module()
    model.register_parameter("a", nn.Parameter(torch.randn(2, 3)))
    model.register_buffer("b", torch.randn(5, 4))
    model.register_parameter("c", nn.Parameter(torch.randn(3, 4)))
    optimizer = kind(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.rand_like(parameter)
    optimizer.step()
    state = optimizer.state_dict()
    source = save({"model": model.state_dict(), "optim": state}, tmp_path / "a.pt")
    convert_checkpoint(source, tmp_path / "out")
    assert named_state(tmp_path / "out", "optim").keys() == {"a", "c"}
    assert verify_checkpoints(source, tmp_path / "out").is_same


def test_optimizers_that_meet_at_a_parameter_are_refused(tmp_path: Path) -> None:
    """torchtitan keeps the settings of each parameter once; the output would hold two under one name."""
    state = {"model": MODEL, "one": BARE, "other": BARE}
    with pytest.raises(PlanError, match=r"FM221 `optimizer\.param_groups\.scale\.lr`"):
        convert_checkpoint(save(state, tmp_path / "a.pt"), tmp_path / "out", to="torchtitan")


def test_a_tensor_beside_a_model_at_the_root_is_compared_with_itself(tmp_path: Path) -> None:
    source = save({"model": MODEL, "optim": OPTIMIZER, "step": torch.tensor(3)}, tmp_path / "folder")
    convert_checkpoint(source, tmp_path / "out", to="torchtitan")
    assert verify_checkpoints(source, tmp_path / "out").is_same
