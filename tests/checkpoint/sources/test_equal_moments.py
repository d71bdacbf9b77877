"""Moments that are equal: an optimizer that an old torch saved wrongly."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import pytest
import torch

from fsdp_migrate.checkpoint_convert import (
    OutputOptions,
    check_checkpoint,
    convert_checkpoint,
    inspect_checkpoint,
    plan_conversion,
    verify_checkpoints,
)
from fsdp_migrate.checkpoint_convert.storage.folders import LocalFolder
from fsdp_migrate.cli import main
from fsdp_migrate.errors import PlanError
from tests.checkpoint.samples import codes, load_with_torch, save_with_torch


if TYPE_CHECKING:
    from pathlib import Path


def test_what_is_said_of_an_optimizer_is_not_said_where_it_is_left_out(tmp_path: Path) -> None:
    moment = torch.rand(4, 2)
    own = {"step": torch.tensor(1.0), "exp_avg": moment, "exp_avg_sq": moment}
    optimizer = {"state": {"w": own}, "param_groups": [{"params": ["w"], "lr": 0.1}]}
    torch.save({"model": {"w": torch.ones(4, 2)}, "optimizer": optimizer}, tmp_path / "full.pt")
    manifest = inspect_checkpoint(tmp_path / "full.pt")
    with pytest.raises(PlanError, match="FM217"):
        plan_conversion(manifest, to="torch")
    assert "FM217" not in codes(plan_conversion(manifest, to="torch", without_optimizer=True))
    assert "FM217" not in codes(plan_conversion(manifest, to="hf"))
    assert "FM217" not in codes(plan_conversion(manifest, weights_only=True))


def corrupt_state(folder: Path) -> Path:
    moment = torch.rand(4, 2)
    own = {"step": torch.tensor(1.0), "exp_avg": moment, "exp_avg_sq": moment}
    optimizer = {"state": {"w": own}, "param_groups": [{"params": ["w"], "lr": 0.1}]}
    state = {"model": {"w": torch.ones(4, 2)}, "optimizer": optimizer, "epoch": 3}
    torch.save(state, folder / "full.pt")
    return folder / "full.pt"


def test_a_corrupt_optimizer_is_refused_unless_told_otherwise(tmp_path: Path) -> None:
    source = corrupt_state(tmp_path)
    with pytest.raises(PlanError, match=r"FM217 .*--without-optimizer.*--keep-corrupt-optimizer"):
        convert_checkpoint(source, tmp_path / "no")
    assert not (tmp_path / "no").exists()
    report = convert_checkpoint(source, tmp_path / "without", without_optimizer=True)
    assert "FM217" not in codes(report)
    loaded = load_with_torch(tmp_path / "without")
    assert loaded["epoch"] == 3
    assert "optimizer" not in loaded
    assert verify_checkpoints(source, tmp_path / "without", without_optimizer=True).is_same
    assert not verify_checkpoints(source, tmp_path / "without").is_same
    kept = OutputOptions(keep_corrupt_optimizer=True)
    report = convert_checkpoint(source, tmp_path / "kept", output_options=kept)
    assert "FM291" in codes(report)
    assert verify_checkpoints(source, tmp_path / "kept").is_same


def test_the_command_refuses_a_corrupt_optimizer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = str(corrupt_state(tmp_path))
    assert main(["convert", source, str(tmp_path / "out")]) == 1
    assert "FM217" in capsys.readouterr().err
    assert main(["inspect", source]) == 0
    shown = capsys.readouterr().out
    assert "FM217" in shown
    assert "cannot be converted:" in " ".join(shown.split())  # not "as asked": nothing was
    assert main(["convert", source, str(tmp_path / "out"), "--without-optimizer"]) == 0
    (line,) = (each for each in capsys.readouterr().out.splitlines() if each.startswith("To compare them: "))
    assert "--without-optimizer" in line
    assert main(shlex.split(line)[4:]) == 0
    assert main(["convert", source, str(tmp_path / "kept"), "--keep-corrupt-optimizer", "--strict"]) == 3
    assert main(["convert", source, str(tmp_path / "kept"), "--keep-corrupt-optimizer"]) == 0


@pytest.mark.parametrize(
    "names",
    [
        ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"),
        ("exp_avg", "exp_inf"),
        ("acc_delta", "square_avg"),
        ("grad_avg", "momentum_buffer", "square_avg"),
        ("prev", "step_size"),
    ],
)
def test_every_optimizer_with_two_moments_is_looked_at(names: tuple[str, ...], tmp_path: Path) -> None:
    """What torch saves of Adam with AMSGrad, Adamax, Adadelta, RMSprop and Rprop: all of them are one."""
    moment = torch.rand(4, 2)
    for way, moments in (("one", [moment] * len(names)), ("apart", [moment.clone() for _ in names])):
        states = {"w": dict(zip(names, moments, strict=True))}
        groups = [{"params": ["w"], "lr": 0.1}]
        state = {"model": {"w": moment}, "optimizer": {"state": states, "param_groups": groups}}
        torch.save(state, tmp_path / f"{way}.pt")
        (finding,) = [
            each for each in inspect_checkpoint(tmp_path / f"{way}.pt").findings if each.code == "FM217"
        ]
        assert "1 of 1 parameter, such as" in finding.message


def test_a_corrupt_optimizer_is_found_where_it_was_saved_again(tmp_path: Path) -> None:
    """By ``dcp.save`` and others its moments become tensors of their own, with the same values."""
    state = torch.load(corrupt_state(tmp_path), weights_only=True)
    assert len(list(tmp_path.iterdir())) == 1
    moments = state["optimizer"]["state"]["w"]
    moments["exp_avg"] = moments["exp_avg"].clone()
    state["model"]["v"] = torch.ones(3)
    state["optimizer"]["state"]["v"] = {"exp_avg": torch.zeros(3), "exp_avg_sq": torch.zeros(3)}
    state["optimizer"]["param_groups"][0]["params"].append("v")
    torch.save(state, tmp_path / "again.pt")
    for source in (save_with_torch(state, tmp_path / "again"), tmp_path / "again.pt"):
        (finding,) = [each for each in inspect_checkpoint(source).findings if each.code == "FM217"]
        assert "at least 1 of 2 parameters, such as `optimizer.state.w.exp_avg`" in finding.message
        with pytest.raises(PlanError, match="FM217"):
            convert_checkpoint(source, tmp_path / "out")
        kept = OutputOptions(keep_corrupt_optimizer=True)
        convert_checkpoint(source, tmp_path / "kept", output_options=kept, overwrite=True)
    # One bit is another value; and moments of which nothing was ever stepped are zeros.
    moments["exp_avg"][3, 1] = 2.0
    assert "FM217" not in {
        f.code for f in inspect_checkpoint(save_with_torch(state, tmp_path / "b")).findings
    }


def test_equal_averages_of_gradients_of_one_are_no_fault(tmp_path: Path) -> None:
    """With a real optimizer: RMSprop keeps averages of gradients and of their squares."""
    model = torch.nn.Linear(3, 4)
    optimizer = torch.optim.RMSprop(model.parameters(), centered=True)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.eye(3)[:1]).sum().backward()
        optimizer.step()
    moments = optimizer.state[model.weight]
    assert torch.equal(moments["grad_avg"], moments["square_avg"])
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    assert "FM217" not in {f.code for f in check_checkpoint(save_with_torch(state, tmp_path)).findings}


def test_little_is_read_of_moments_however_many_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"w{number}" for number in range(12)]
    states = {name: {"exp_avg": torch.rand(300, 200), "exp_avg_sq": torch.rand(300, 200)} for name in names}
    groups = [{"params": names, "lr": 0.1}]
    state = {"model": {n: torch.ones(1) for n in names}, "optim": {"state": states, "param_groups": groups}}
    source = save_with_torch(state, tmp_path / "source")
    read: list[int] = []
    own = LocalFolder.read_into

    def noting(self: LocalFolder, name: str, offset: int, view: memoryview) -> None:
        read.append(len(view))
        own(self, name, offset, view)

    monkeypatch.setattr(LocalFolder, "read_into", noting)
    inspect_checkpoint(source)
    # Of three parameters the beginning of both moments, and of each the directory of its item.
    assert sum(read) <= (source / ".metadata").stat().st_size + 6 * (4096 * 4 + 8192)
