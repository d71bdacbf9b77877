"""Ranks that save adapters of a sharded model: as they should, and rank 0's slice alone."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import nn
from torch.distributed.tensor import DTensor

from fsdp_migrate import prepare_fully_shard
from fsdp_migrate.runtime import full_state_dict


class Layer(nn.Module):
    """A layer with the names that PEFT gives."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.base_layer = nn.Linear(12, 10, bias=False).requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(12, rank, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(rank, 10, bias=False)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.base_layer(x) + self.lora_B["default"](self.lora_A["default"](x))
        return out


def save(folder: str, rank: int) -> None:
    """Save the adapters, in several ways."""
    root = nn.ModuleDict({"q_proj": Layer(rank)})
    model = nn.Sequential(*root.values())
    prepare_fully_shard(model, {"auto_wrap_policy": {Layer}, "device_id": "cpu"})
    state = full_state_dict(model)
    if dist.get_rank():
        return
    whole = state["model"]
    shards = {name: param for name, param in model.named_parameters() if "lora" in name}
    slices = {name: param.to_local() for name, param in shards.items() if isinstance(param, DTensor)}
    slices = {name: value.detach().clone() for name, value in slices.items()}
    adapters = {name: whole[name] for name in slices}
    torch.save({_in_file(name): value.detach() for name, value in shards.items()}, Path(folder, "shards.bin"))
    save_file({_in_file(name): value for name, value in slices.items()}, Path(folder, "slices.safetensors"))
    save_file({_in_file(name): value for name, value in adapters.items()}, Path(folder, "whole.safetensors"))
    torch.save({**whole, **slices}, Path(folder, "beside_the_base.pt"))
    torch.save(whole, Path(folder, "all.pt"))


def _in_file(name: str) -> str:
    """PEFT leaves the adapter's name out when it saves."""
    return f"base_model.model.{name.replace('.default.', '.')}"
