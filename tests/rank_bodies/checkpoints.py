"""Saves small checkpoints of FSDP1 runs, for tests of the command and of the documents."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel
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


def save_fsdp1(folder: str, prefix: str = "") -> None:
    """Save what an FSDP1 run of plain torch saves after a step, with ``prefix`` before the model's names."""
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
    groups: Any = optimizer_state["param_groups"]
    for group in groups:
        group.setdefault("decoupled_weight_decay", True)  # torch 2.6 has none, and newer ones ask for it
    named = {f"{prefix}{name}": value for name, value in model_state.items()}
    dcp.save({"model": named, "optimizer": optimizer_state, "step": 1}, checkpoint_id=folder)
