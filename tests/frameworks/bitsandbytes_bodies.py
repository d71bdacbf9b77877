"""Ranks that train 4-bit layers of bitsandbytes with adapters, under FSDP1 and prepared, on the CPU."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from fsdp_migrate import prepare_fully_shard
from fsdp_migrate.runtime import full_state_dict


WIDTH = 64
STORAGES = ("float32", "bfloat16", "uint8")


class Layer(nn.Module):
    """A packed layer with an adapter."""

    def __init__(self, storage: torch.dtype, dtype: torch.dtype) -> None:
        super().__init__()
        kind = importlib.import_module("bitsandbytes").nn.Linear4bit
        options: dict[str, Any] = {"quant_type": "nf4", "quant_storage": storage, "compute_dtype": dtype}
        self.base = kind(WIDTH, WIDTH, bias=False, **options).to("cpu")  # which packs it
        self.down = nn.Linear(WIDTH, 4, bias=False, dtype=dtype)
        self.up = nn.Linear(4, WIDTH, bias=False, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + torch.tanh(self.base(x)) + self.up(self.down(x))
        return out


def train() -> dict[str, dict[str, Any]]:
    """Train with each storage; return losses, whole states and bytes, by who trained."""
    warnings.simplefilter("ignore")
    return {storage: _train(getattr(torch, storage)) for storage in STORAGES}


def _make(storage: torch.dtype) -> tuple[nn.Sequential, torch.dtype]:
    dtype = storage if storage.is_floating_point else torch.float32
    torch.manual_seed(4)
    return nn.Sequential(*(Layer(storage, dtype) for _ in range(2))), dtype


def _train(storage: torch.dtype) -> dict[str, Any]:
    found: dict[str, Any] = {}
    policy = ModuleWrapPolicy({Layer})
    for kind in ("plain", "FSDP1", "prepared"):
        inner, dtype = _make(storage)
        model: nn.Module = inner
        if kind == "FSDP1":
            if not storage.is_floating_point:
                continue  # FSDP1 refuses it
            options: dict[str, Any] = {"use_orig_params": True, "device_id": torch.device("cpu")}
            model = FSDP(inner, auto_wrap_policy=policy, **options)
        elif kind == "prepared":
            prepare_fully_shard(inner, {"auto_wrap_policy": policy, "device_id": "cpu"})
        losses = [] if kind == "plain" else _steps(model, dtype)
        if kind == "FSDP1":
            with FSDP.summon_full_params(model):
                state = {name: value.detach().clone() for name, value in inner.state_dict().items()}
        else:
            state = full_state_dict(inner, rank0_only=False)["model"]
        found[kind] = losses, {name: _bytes(value) for name, value in state.items()}
    return found


def _steps(model: nn.Module, dtype: torch.dtype) -> list[float]:
    optimizer = torch.optim.SGD([param for param in model.parameters() if param.requires_grad], lr=0.1)
    losses = []
    for step in range(3):
        generator = torch.Generator().manual_seed(5 * step + dist.get_rank())
        x = torch.randn(4, WIDTH, generator=generator).to(dtype)
        loss = (model(x) - x.roll(1, 0)).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def _bytes(value: torch.Tensor) -> bytes:
    return bytes(value.detach().contiguous().reshape(-1).view(torch.uint8).tolist())


def classes_of_names() -> dict[str, str]:
    """Return the module of the class that Hugging Face's Trainer makes for each name of an optimizer."""
    from transformers import Trainer, TrainingArguments
    from transformers.training_args import OptimizerNames

    found = {}
    for name in OptimizerNames:
        arguments = TrainingArguments("build/none", optim=name, use_cpu=True, report_to=[])
        try:
            made = Trainer.get_optimizer_cls_and_kwargs(arguments)[0]
        except (ImportError, ValueError):
            continue  # of a package that is not here
        found[name.value] = made.__module__
    return found
