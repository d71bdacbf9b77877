"""What a rank said, and which one failed first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from fsdp_migrate.cli import main
from tests.scripts import launch_forked


if TYPE_CHECKING:
    import pytest

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
