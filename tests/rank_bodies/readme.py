"""Runs what README.md shows, with the names that its readers are assumed to have."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 5)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.linear(value)
        return output


class Model(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(Block(), Block(), nn.Linear(5, 3))


def run_blocks(blocks: list[str]) -> list[str]:
    """Run each block with a new ``model``; return the class that the model has after it."""
    names: dict[str, Any] = {
        "Block": Block,
        "MixedPrecision": MixedPrecision,
        "ModuleWrapPolicy": ModuleWrapPolicy,
        "ShardingStrategy": ShardingStrategy,
        "device": torch.device("cpu"),
        "torch": torch,
    }
    classes = []
    for block in blocks:
        names["model"] = Model()
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(block, "README.md", "exec"), names)
        names["model"](torch.ones(2, 5)).sum().backward()
        classes.append(type(names["model"]).__name__)
    return classes


def save_checkpoint(folder: str) -> None:
    """Save what an FSDP1 run of plain torch saves, after one step."""
    torch.manual_seed(0)
    model = FullyShardedDataParallel(
        Model(),
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        device_id=torch.device("cpu"),
        use_orig_params=True,
    )
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 5)).sum().backward()
    optimizer.step()
    model_state, optimizer_state = get_state_dict(model, optimizer)
    dcp.save({"model": model_state, "optimizer": optimizer_state, "step": 1}, checkpoint_id=folder)
