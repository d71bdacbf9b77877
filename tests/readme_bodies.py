"""Runs what README.md shows, with the names that its readers are assumed to have."""

from __future__ import annotations

import contextlib
import io
import os
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from tests.rank_bodies.checkpoints import Block, Model


if TYPE_CHECKING:
    from pathlib import Path


def save_old_run(folder: Path) -> None:
    """Save what the README loads, as the old run would have."""
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    names = [name for name, _ in model.named_parameters()]
    group = {**optimizer.state_dict()["param_groups"][0], "params": names}
    folder.mkdir(parents=True)
    state = {"model": model.state_dict(), "optimizer": {"state": {}, "param_groups": [group]}}
    torch.save({**state, "scheduler": scheduler.state_dict(), "step": 4000}, folder / "state.pt")


def run_blocks(blocks: list[str], folder: str) -> list[str]:
    """Run each block in a folder with a new ``model``; return the class that the model has after it.

    The last block ends the process group; who runs this needs one.
    """
    os.chdir(folder)
    rank, world_size = dist.get_rank(), dist.get_world_size()
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
        names["optimizer"] = torch.optim.SGD(names["model"].parameters(), lr=0.1)
        names["scheduler"] = torch.optim.lr_scheduler.StepLR(names["optimizer"], 1)
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(block, "README.md", "exec"), names)
        names["model"](torch.ones(2, 5)).sum().backward()
        classes.append(type(names["model"]).__name__)
    if not dist.is_initialized():
        classes[-1] = "the group has ended"
        store = dist.FileStore(f"{folder}/group", world_size)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    return classes
