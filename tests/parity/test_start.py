"""What a rank said, and which one failed first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from fsdp_migrate.cli import main
from tests.scripts import launch_forked


if TYPE_CHECKING:
    from pathlib import Path

    Capture = pytest.CaptureFixture[str]


def test_what_a_rank_said_is_told(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fsdp_migrate.parity.start.launch_ranks", launch_forked)
    assert main(["parity", "--model", "tests.models:ConvNet", "--device", "cpu"]) == 1
    said = capsys.readouterr().err.partition("\n")[2]
    assert said.startswith("Error: No batches can be made for ConvNet, whose forward takes `tokens`")
    assert "Traceback" not in said


def layer() -> nn.Module:
    return nn.Linear(4, 2)


def fail_on_rank_1(model: nn.Module, batch: Any) -> Any:
    if dist.get_rank() == 1:
        raise ValueError("only here")
    return model(batch).sum()


def batches() -> list[torch.Tensor]:
    return [torch.ones(2, 4)] * 8


def test_the_rank_that_failed_first_is_told(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other ranks fail too, when they lose it; rank 0's loss of a connection was told in its place."""
    monkeypatch.setattr("fsdp_migrate.parity.start.launch_ranks", launch_forked)
    given = [
        f"--{name}={__name__}:{function}"
        for name, function in [("loss", "fail_on_rank_1"), ("data", "batches")]
    ]
    assert main(["parity", "--model", f"{__name__}:layer", *given, "--device", "cpu"]) == 1
    said = capsys.readouterr().err.partition("\n")[2]
    assert "failed in step 1, on rank 1: ValueError" in said
    assert "only here" in said


def half_frozen() -> nn.Module:
    model = layer()
    model.weight.requires_grad_(False)
    return model


def of_two_dtypes() -> nn.Module:
    return nn.Sequential(layer(), layer().half())


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        (
            "half_frozen",
            "some of this model are frozen, `weight` for one. Set `use_orig_params: true` in the config",
        ),
        ("of_two_dtypes", "Must flatten tensors with uniform dtype but got torch.float"),
    ],
)
def test_what_fsdp1_itself_refuses_is_said_without_a_traceback(
    factory: str, said: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There were 30 lines of each rank, and the last said not what to do: `scan` writes no such key."""
    monkeypatch.setattr("fsdp_migrate.parity.start.launch_ranks", launch_forked)
    given = ["--model", f"{__name__}:{factory}", f"--data={__name__}:batches", "--device=cpu"]
    assert main(["parity", *given]) == 1
    shown = capsys.readouterr().err.partition("\n")[2]
    assert shown.startswith("Error: FSDP1 itself refuses this model with these arguments: ")
    assert said in " ".join(shown.split())
    assert "Traceback" not in shown


def save_in_two_groups(folder: Path) -> Path:
    """Save what a run with two groups of parameters has after a step."""
    model = layer()
    groups: list[dict[str, Any]] = [{"params": [model.weight]}, {"params": [model.bias], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, foreach=False)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "state.pt")
    return folder / "state.pt"


def test_a_checkpoint_that_does_not_fit_is_told_in_the_words_of_the_command(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fsdp_migrate.parity.start.launch_ranks", launch_forked)
    given = [f"--checkpoint={save_in_two_groups(tmp_path)}", f"--data={__name__}:batches", "--device=cpu"]
    assert main(["parity", "--model", f"{__name__}:layer", *given]) == 1
    said = capsys.readouterr().err
    assert "the checkpoint has 2 parameter groups of [1, 1] parameters" in said
    assert "`--optimizer PKG.MOD:OPTIMIZER`" in said
    assert "`--weights-only`" in said
    assert "strict=False" not in said
