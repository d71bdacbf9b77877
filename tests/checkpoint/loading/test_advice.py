"""What ``inspect`` says one types to load a checkpoint is what README shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from fsdp_migrate import load_checkpoint
from fsdp_migrate.checkpoint_convert import inspect_checkpoint
from fsdp_migrate.checkpoint_convert.loading.advice import advise_loading
from fsdp_migrate.errors import CheckpointMismatchError
from tests.ranks import ROOT


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


def test_a_list_of_schedulers_comes_back_as_a_value(tmp_path: Path) -> None:
    """As Lightning saves them; a list takes no state."""
    model = nn.Linear(2, 2)
    states = [{"last_epoch": 2, "_last_lr": [0.1]}]
    torch.save(
        {"pytorch-lightning_version": "2.6.6", "state_dict": model.state_dict(), "lr_schedulers": states},
        tmp_path / "a.ckpt",
    )
    assert "'lr_schedulers': None" in advise_loading(inspect_checkpoint(tmp_path / "a.ckpt")).call
    report = load_checkpoint(tmp_path / "a.ckpt", model, extra={"lr_schedulers": None})
    assert report.values == {"lr_schedulers": states}


def test_the_line_is_that_of_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step was asked for by ``None`` here, and by ``0`` there."""
    monkeypatch.chdir(tmp_path)
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    folder = tmp_path / "runs" / "old"
    folder.mkdir(parents=True)
    names = [name for name, _ in model.named_parameters()]
    state = optimizer.state_dict()
    saved = {
        "state": {name: state["state"][number] for number, name in enumerate(names)},
        "param_groups": [{**state["param_groups"][0], "params": names}],
    }
    whole = {
        "model": model.state_dict(),
        "optimizer": saved,
        "scheduler": scheduler.state_dict(),
        "step": 4000,
    }
    torch.save(whole, folder / "step-4000")
    call = advise_loading(inspect_checkpoint("runs/old/step-4000")).call.replace("'", '"')
    assert f"\nreport = {call}\n" in (ROOT / "README.md").read_text()


def test_what_stands_beside_the_model_has_a_name_of_its_own(tmp_path: Path) -> None:
    """As under the one key of torch's tutorial: its scheduler and step were not named, and not asked for."""
    model = nn.Linear(2, 2)
    app = {"model": model.state_dict(), "sched": {"last_epoch": 3, "base_lrs": [0.1]}, "step": 3}
    torch.save({"app": app}, tmp_path / "a.pt")
    advice = advise_loading(inspect_checkpoint(tmp_path / "a.pt"))
    assert advice.call.endswith("model, extra={'app.sched': sched, 'app.step': 0})")
    with pytest.raises(CheckpointMismatchError, match=r"`scheduler`.*the checkpoint has: `app.sched`"):
        load_checkpoint(tmp_path / "a.pt", model, extra={"scheduler": None, "step": 0})
    report = load_checkpoint(tmp_path / "a.pt", model, extra={"app.sched": None, "app.step": 0})
    assert report.values == {"app.sched": app["sched"], "app.step": 3}


@pytest.mark.parametrize("is_trainers", [False, True])
def test_the_state_dict_type_is_named_as_its_reader_names_it(tmp_path: Path, is_trainers: bool) -> None:
    model = nn.Linear(2, 2)
    torch.save(dict(model.state_dict()), tmp_path / "pytorch_model_fsdp.bin")
    moments = {name: {"momentum_buffer": value} for name, value in model.state_dict().items()}
    groups = [{"lr": 0.1, "params": list(moments)}]
    torch.save({"state": moments, "param_groups": groups}, tmp_path / "optimizer.bin")
    if is_trainers:
        (tmp_path / "trainer_state.json").write_text('{"global_step": 2}')
    said = str(advise_loading(inspect_checkpoint(tmp_path)).by_framework)
    assert ("`fsdp_state_dict_type: FULL_STATE_DICT`, from" in said) is not is_trainers
    assert ("`state_dict_type: FULL_STATE_DICT` in the HF Trainer's `fsdp_config`" in said) is is_trainers


def net(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, width), nn.LayerNorm(width))


@pytest.mark.parametrize("widths", [(3, 3), (3, 4)])
@pytest.mark.parametrize("is_nested", [False, True])
def test_of_several_models_each_has_its_line(
    tmp_path: Path, widths: tuple[int, int], is_nested: bool
) -> None:
    """One line with all optimizers was named, which raised."""
    saved: dict[str, Any] = {"step": 3}
    states = {}
    for name, width in zip(("gen", "disc"), widths, strict=True):
        model = net(width)
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(2)).sum().backward()
        optimizer.step()
        states[name] = model.state_dict()
        parts = {"model": model.state_dict(), "opt": optimizer.state_dict()}
        saved |= {name: parts} if is_nested else {name: parts["model"], f"opt_{name}": parts["opt"]}
    torch.save(saved, tmp_path / "gan.pt")
    lines = advise_loading(inspect_checkpoint(tmp_path / "gan.pt")).call.splitlines()
    assert len(lines) == 2
    assert "extra={'step': 0}" in lines[0]
    for name, width, line in zip(("gen", "disc"), widths, lines, strict=True):
        model = net(width)
        given: dict[str, Any] = {name: model, f"{name}_optimizer": torch.optim.Adam(model.parameters())}
        eval(line, {"load_checkpoint": load_checkpoint, **given})
        assert all(torch.equal(value, states[name][key]) for key, value in model.state_dict().items())
        assert len(given[f"{name}_optimizer"].state) == 4
