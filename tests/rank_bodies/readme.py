"""Runs what README.md shows, with the names that its readers are assumed to have."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import torch
from torch.distributed.fsdp import MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from tests.rank_bodies.checkpoints import Block, Model


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
