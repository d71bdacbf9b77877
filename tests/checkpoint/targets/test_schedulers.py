"""The functions of a scheduler in what other frameworks read."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch

from fsdp_migrate.checkpoint_convert import (
    convert_checkpoint,
)
from tests.checkpoint.samples import (
    save_with_torch,
)


if TYPE_CHECKING:
    from pathlib import Path


class Warmup:
    def __init__(self, steps: int) -> None:
        self.steps = steps

    def __call__(self, step: int) -> float:
        return min(1.0, (step + 1) / self.steps)


@pytest.mark.parametrize("has_attributes", [False, True])
def test_functions_of_a_scheduler_that_torch_did_not_store(has_attributes: bool, tmp_path: Path) -> None:
    """torch.distributed.checkpoint stores no empty mappings, and LambdaLR has one for each plain function."""

    def make(steps: int) -> torch.optim.lr_scheduler.LambdaLR:
        groups = [{"params": [torch.nn.Parameter(torch.ones(2))]} for _ in range(2)]
        halves: Any = partial(pow, 0.5)
        functions = [halves, Warmup(steps) if has_attributes else halves]
        return torch.optim.lr_scheduler.LambdaLR(torch.optim.SGD(groups, lr=1.0), functions)

    saved = make(4)
    saved.optimizer.step()
    saved.step()
    source = save_with_torch(
        {"model": {"a": torch.ones(2)}, "scheduler": saved.state_dict()}, tmp_path / "source"
    )
    convert_checkpoint(source, tmp_path / "accelerate", to="accelerate")
    convert_checkpoint(source, tmp_path / "lightning", to="lightning")
    own = torch.load(tmp_path / "accelerate" / "scheduler.bin", weights_only=True)
    (other,) = torch.load(tmp_path / "lightning" / "meta.pt", weights_only=True)["lr_schedulers"]
    saved.optimizer.step()
    saved.step()
    for state in (own, other):
        found = make(2)
        found.load_state_dict(state)
        found.optimizer.step()
        found.step()
        assert found.get_last_lr() == saved.get_last_lr()
