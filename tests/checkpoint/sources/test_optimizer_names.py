"""Optimizers that know their parameters by number: named where that is sure, refused where it is not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from fsdp_migrate.checkpoint_convert import convert_checkpoint, inspect_checkpoint, verify_checkpoints
from fsdp_migrate.checkpoint_convert.manifest.options import ModelOutline, SourceOptions
from fsdp_migrate.cli import main
from fsdp_migrate.errors import PlanError
from tests.checkpoint.samples import load_with_torch


if TYPE_CHECKING:
    from pathlib import Path


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(3))
        self.emb = torch.nn.Embedding(11, 6)
        self.norm = torch.nn.LayerNorm(6)
        self.up = torch.nn.Linear(6, 13)
        self.head = torch.nn.Linear(6, 11, bias=False)
        self.head.weight = self.emb.weight


class Own:
    """A class that no list knows."""


def trained(groups: Any = None, frozen: str | None = None) -> tuple[Net, torch.optim.Optimizer]:
    torch.manual_seed(0)
    net = Net()
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(name != frozen)
    optimizer = torch.optim.AdamW(groups(net) if groups else net.parameters())
    for parameter in net.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    return net, optimizer


def save(net: Net, optimizer: torch.optim.Optimizer, path: Path) -> Path:
    torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, path)
    return path


def decay(net: Net) -> list[dict[str, Any]]:
    many = [p for p in net.parameters() if p.ndim > 1]
    return [{"params": many, "weight_decay": 0.1}, {"params": [p for p in net.parameters() if p.ndim < 2]}]


def assert_named(folder: Path, net: Net, optimizer: torch.optim.Optimizer) -> None:
    loaded = load_with_torch(folder)["optimizer"]
    names: dict[torch.Tensor, str] = {parameter: name for name, parameter in net.named_parameters()}
    wanted = {names[p]: state for p, state in optimizer.state.items()}
    assert loaded["state"].keys() == wanted.keys()
    for name, state in wanted.items():
        for field, value in state.items():
            assert torch.equal(loaded["state"][name][field], value), (name, field)
    for group, own in zip(loaded["param_groups"], optimizer.param_groups, strict=True):
        assert group["params"] == [names[p] for p in own["params"]]
        assert group["weight_decay"] == own["weight_decay"]


@pytest.mark.alike
@pytest.mark.parametrize(
    ("groups", "frozen"), [(None, None), (None, "norm.bias"), (decay, None), (decay, "up.weight")]
)
def test_numbers_become_names_in_the_order_of_the_model(
    groups: Any, frozen: str | None, tmp_path: Path
) -> None:
    net, optimizer = trained(groups, frozen)
    source = save(net, optimizer, tmp_path / "a.pt")
    report = convert_checkpoint(source, tmp_path / "out", world_size=2)
    assert [f.subject for f in report.findings if f.code == "FM233"] == ["optimizer"]
    assert_named(tmp_path / "out", net, optimizer)
    assert verify_checkpoints(source, tmp_path / "out").is_same


def test_what_is_not_sure_is_refused_and_the_model_or_names_help(tmp_path: Path) -> None:
    # `norm.weight` is in no group: the one number of that shape could be it as well as `norm.bias`.
    net, optimizer = trained(lambda n: [n.emb.weight, n.norm.bias, *n.up.parameters()])
    source = save(net, optimizer, tmp_path / "a.pt")
    with pytest.raises(PlanError, match=r"FM234.*several names fit the number 1.*parameter_names"):
        convert_checkpoint(source, tmp_path / "out")
    convert_checkpoint(source, tmp_path / "weights", weights_only=True)
    names = ("emb.weight", "norm.bias", "up.weight", "up.bias")
    convert_checkpoint(source, tmp_path / "named", options=SourceOptions(parameter_names=names))
    assert_named(tmp_path / "named", net, optimizer)
    given_names = SourceOptions(parameter_names=names)
    manifest = inspect_checkpoint(source, options=given_names)
    assert verify_checkpoints(manifest, tmp_path / "named").is_same
    too_few = SourceOptions(parameter_names=names[:2])
    with pytest.raises(PlanError, match="2 names given for 4 numbers"):
        convert_checkpoint(source, tmp_path / "out", options=too_few)


def test_an_optimizer_by_itself_needs_the_model(tmp_path: Path) -> None:
    net, optimizer = trained()
    torch.save({"optimizer": optimizer.state_dict()}, tmp_path / "o.pt")
    with pytest.raises(PlanError, match=r"FM234.*0 models beside it"):
        convert_checkpoint(tmp_path / "o.pt", tmp_path / "out")
    shapes = {name: tuple(p.shape) for name, p in net.named_parameters()}
    options = SourceOptions(model=ModelOutline(shapes))
    convert_checkpoint(tmp_path / "o.pt", tmp_path / "out", options=options)
    assert_named(tmp_path / "out", net, optimizer)
    wrong = SourceOptions(model=ModelOutline({**shapes, "emb.weight": (12, 6)}))
    with pytest.raises(PlanError, match="no order of the model"):
        convert_checkpoint(tmp_path / "o.pt", tmp_path / "wrong", options=wrong)


def test_the_names_that_an_optimizer_keeps_are_taken(tmp_path: Path) -> None:
    net, optimizer = trained(lambda n: [n.norm.bias, n.norm.weight])
    state = optimizer.state_dict()
    state["param_groups"][0]["param_names"] = ["norm.bias", "norm.weight"]
    torch.save({"model": net.state_dict(), "optimizer": state}, tmp_path / "a.pt")
    convert_checkpoint(tmp_path / "a.pt", tmp_path / "out")
    assert_named(tmp_path / "out", net, optimizer)


def test_the_command_takes_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net, optimizer = trained()
    torch.save({"optimizer": optimizer.state_dict(), "own": Own()}, tmp_path / "o.pt")
    source, out = str(tmp_path / "o.pt"), str(tmp_path / "out")
    assert main(["convert", source, out, "--model", f"{__name__}:Net"]) == 1
    assert "FM230" in capsys.readouterr().err
    assert main(["convert", source, out, "--trust-pickle"]) == 1
    assert "FM234" in capsys.readouterr().err
    given_both = ["--model", f"{__name__}:Net", "--trust-pickle"]
    assert main(["inspect", source, *given_both, "--json"]) == 0
    assert '"FM233"' in capsys.readouterr().out
    assert main(["convert", source, out, *given_both]) == 0
    assert_named(tmp_path / "out", net, optimizer)
