"""Renames that a user asks for, and the model that is to load the result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from fsdp_migrate.checkpoint_convert import (
    OutputOptions,
    SourceOptions,
    convert_checkpoint,
    inspect_checkpoint,
    plan_conversion,
)
from fsdp_migrate.cli import main
from fsdp_migrate.errors import ConfigError, PlanError
from fsdp_migrate.sharding.outlines import outline_model
from tests.checkpoint.samples import DATA, load_with_torch, save_with_torch


if TYPE_CHECKING:
    from pathlib import Path


class Tiny(nn.Module):
    def __init__(self, *, tied: bool = False) -> None:
        super().__init__()
        self.up = nn.Linear(3, 4)
        self.down = nn.Linear(3, 4)
        self.register_buffer("scale", torch.ones(2))
        if tied:
            self.down.weight = self.up.weight


def optimizer_of(model: nn.Module, *suffixes: str) -> torch.optim.Optimizer:
    """Return an optimizer with a group per suffix of names; one for all without."""
    named = dict(model.named_parameters())
    groups = [[p for n, p in named.items() if n.endswith(s)] for s in suffixes or ("",)]
    return torch.optim.AdamW([{"params": g, "lr": 0.1 * (n + 1)} for n, g in enumerate(groups)])


def save(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> Path:
    from torch.distributed.checkpoint.state_dict import get_state_dict

    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return save_with_torch({"model": model_state, "optim": optimizer_state}, folder)


def problems(source: Path, model: nn.Module, optimizer: Any = None, **options: Any) -> dict[str, str]:
    """Return the codes of what is said about a model that is to load a checkpoint, with their messages."""
    outline = outline_model(model, optimizer=optimizer)
    manifest = inspect_checkpoint(source, options=SourceOptions(model=outline))
    try:
        findings: Any = plan_conversion(manifest, **options).findings
    except PlanError as error:
        findings = error.findings
    return {f.code: f"{f.subject} {f.message}" for f in findings if "FM258" <= f.code <= "FM262"}


def test_names_change_in_model_optimizer_and_groups(tmp_path: Path) -> None:
    model = Tiny()
    save(tmp_path / "source", model, optimizer_of(model, "weight", "bias"))
    options = OutputOptions(renames=(r"^(up|down)\.=net.\1.", r"net\.up=net.first"))
    report = convert_checkpoint(tmp_path / "source", tmp_path / "out", output_options=options)
    state = load_with_torch(tmp_path / "out")
    assert set(state["model"]) == {
        "net.first.weight",
        "net.first.bias",
        "net.down.weight",
        "net.down.bias",
        "scale",
    }
    assert torch.equal(state["model"]["net.first.weight"], model.up.weight)
    assert set(state["optim"]["state"]) == set(state["model"]) - {"scale"}
    assert [group["params"] for group in state["optim"]["param_groups"]] == [
        ["net.first.weight", "net.down.weight"],
        ["net.first.bias", "net.down.bias"],
    ]
    assert [f.code for f in report.findings if f.code == "FM263"] == ["FM263"]
    convert_checkpoint(tmp_path / "source", tmp_path / "titan", to="torchtitan", output_options=options)
    flat = load_with_torch(tmp_path / "titan")["optimizer"]
    assert flat["param_groups.net.down.bias.lr"] == pytest.approx(0.2)
    back = OutputOptions(renames=(r"^net\.first=up", r"^net\.="))
    convert_checkpoint(tmp_path / "titan", tmp_path / "back", output_options=back)
    assert "param_groups.up.weight.lr" in load_with_torch(tmp_path / "back")["optimizer"]


def test_a_model_whose_own_names_begin_as_those_of_ddp_keeps_them(tmp_path: Path) -> None:
    model = torch.nn.ModuleDict({"module": Tiny()})
    save(tmp_path / "source", model, optimizer_of(model))
    assert problems(tmp_path / "source", model, optimizer_of(model)) == {}
    options = SourceOptions(model=outline_model(model))
    convert_checkpoint(tmp_path / "source", tmp_path / "out", options=options, world_size=3)
    assert "module.up.weight" in load_with_torch(tmp_path / "out")["model"]


def test_groups_saved_whole_are_renamed_too(tmp_path: Path) -> None:
    options = OutputOptions(renames=(r"blocks\.(\d)=layers.\1",))
    convert_checkpoint(DATA / "torch-2.3.1" / "mesh.dcp", tmp_path / "out", output_options=options)
    names = load_with_torch(tmp_path / "out")["optimizer"]["param_groups"][0]["params"]
    assert any(name.startswith("layers.0") for name in names)
    assert not any("blocks" in name for name in names)


@pytest.mark.parametrize(
    ("rename", "message"),
    [
        ("no equals sign", "expected 'regex=replacement'"),
        ("=x", "expected 'regex=replacement'"),
        ("(=x", "rename"),
        (r"up=\9", "rename"),
        ("nothing=x", "changes no name"),
        ("up.weight=", "which is no name"),
    ],
)
def test_renames_that_mean_nothing(rename: str, message: str, tmp_path: Path) -> None:
    model = Tiny()
    save(tmp_path / "source", model, optimizer_of(model))
    with pytest.raises(ConfigError, match=message) as caught:
        convert_checkpoint(
            tmp_path / "source", tmp_path / "out", output_options=OutputOptions(renames=(rename,))
        )
    assert caught.value.field == "rename"
    assert not (tmp_path / "out").exists()


def test_two_names_that_become_one_are_refused(tmp_path: Path) -> None:
    model = Tiny()
    save(tmp_path / "source", model, optimizer_of(model))
    options = OutputOptions(renames=("down=up",))
    with pytest.raises(PlanError, match=r"down\.weight.* and \d+ more\. Change the rename") as caught:
        convert_checkpoint(tmp_path / "source", tmp_path / "out", output_options=options)
    assert [finding.code for finding in caught.value.findings] == ["FM221"]


def test_a_model_that_fits_is_no_problem(tmp_path: Path) -> None:
    model = Tiny()
    save(tmp_path / "source", model, optimizer_of(model, "weight", "bias"))
    assert problems(tmp_path / "source", model, optimizer_of(model, "weight", "bias")) == {}
    assert problems(tmp_path / "source", model) == {}


@pytest.mark.parametrize(
    ("saved", "loaded", "message"),
    [
        (("weight", "bias"), (), "first groups only"),
        (("weight", "bias"), ("bias", "weight"), "another order"),
        ((), ("weight", "bias"), "is missing"),
        (("weight", "bias"), ("up.weight", "down.weight"), "KeyError"),
    ],
    ids=["merged", "ordered", "split", "other"],
)
def test_other_groups_are_found(
    saved: tuple[str, ...], loaded: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    model = Tiny()
    save(tmp_path / "source", model, optimizer_of(model, *saved))
    found = problems(tmp_path / "source", model, optimizer_of(model, *loaded))
    assert found.keys() == {"FM261"}
    assert message in found["FM261"]


def test_other_models_are_found(tmp_path: Path) -> None:
    model = Tiny()
    source = save(tmp_path / "source", model, optimizer_of(model))
    wider = Tiny()
    wider.up = nn.Linear(3, 5)
    assert "[4]" in problems(source, wider)["FM258"]
    assert problems(source, Tiny().bfloat16()).keys() == {"FM260"}
    assert problems(source, Tiny().bfloat16(), dtype="bf16").keys() == set()
    more = Tiny()
    more.extra = nn.Linear(2, 2)
    assert problems(source, more).keys() == {"FM258", "FM262"}
    assert "extra.weight" in problems(source, more, weights_only=True)["FM258"]
    fewer = Tiny()
    del fewer.down
    assert problems(source, fewer).keys() == {"FM259"}


def test_parameters_that_were_frozen_or_tied_are_found(tmp_path: Path) -> None:
    model = Tiny()
    model.up.requires_grad_(False)
    trained = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    source = save(tmp_path / "frozen", model, trained)
    assert problems(source, Tiny()).keys() == {"FM262"}
    assert problems(source, model) == {}
    untied = Tiny()
    source = save(tmp_path / "untied", untied, optimizer_of(untied))
    assert "ties it" in problems(source, Tiny(tied=True))["FM262"]
    tied = Tiny(tied=True)
    source = save(tmp_path / "tied", tied, optimizer_of(tied))
    assert problems(source, Tiny(tied=True)) == {}
    assert "down.weight" in problems(source, Tiny())["FM262"]


def test_the_command_takes_a_model_with_its_optimizer_and_renames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Tiny()
    save(tmp_path / "source", model, optimizer_of(model, "weight", "bias"))
    (tmp_path / "fit_factory.py").write_text(
        "from tests.checkpoint.planning.test_model_fit import Tiny, optimizer_of\n"
        "def one_group():\n    model = Tiny()\n    return model, optimizer_of(model)\n"
        "def two_groups():\n    model = Tiny()\n    return model, optimizer_of(model, 'weight', 'bias')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    command = ["convert", str(tmp_path / "source"), str(tmp_path / "out"), "--rename", "up=first", "--json"]
    assert main([*command, "--model", "fit_factory:one_group"]) == 1
    assert "FM261" in capsys.readouterr().out
    assert main([*command, "--model", "fit_factory:two_groups"]) == 0
    assert "first.weight" in load_with_torch(tmp_path / "out")["optim"]["state"]
