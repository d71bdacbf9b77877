"""Batches of microbatches: what is left in gradients, flags and buffers, also when ranks fail."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel as FSDP

from fsdp_migrate.microbatch import Comms, microbatches
from fsdp_migrate.prepare import prepare_fully_shard
from fsdp_migrate.torch_compat_comms import parameter_groups
from tests.models import Block, ConvNet, Head, Net, batch, loss_of
from tests.rank_bodies.parity import Tensors, full


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


UNITS: dict[str, Any] = {"device_id": "cpu", "auto_wrap_policy": {Block, Head}}


def prepared(seed: int = 0, **arguments: Any) -> Any:
    """Return a net of three units and the root, the same on every rank."""
    torch.manual_seed(seed)
    return prepare_fully_shard(Net(), {**UNITS, **arguments})


def hybrid() -> dict[str, Any]:
    return {"sharding_strategy": "HYBRID_SHARD", "device_mesh": init_device_mesh("cpu", (2, 2))}


STRATEGIES: dict[str, Callable[[], dict[str, Any]]] = {
    "FULL_SHARD": dict,
    "SHARD_GRAD_OP": lambda: {"sharding_strategy": "SHARD_GRAD_OP"},
    "NO_SHARD": lambda: {"sharding_strategy": "NO_SHARD"},
    "forward prefetch": lambda: {"forward_prefetch": True},
    "bf16": lambda: {"mixed_precision": {"param_dtype": "bfloat16", "reduce_dtype": "float32"}},
    "HYBRID_SHARD": hybrid,
}


def parts_of(step: int, rank: int, count: int) -> list[torch.Tensor]:
    """Return the microbatches of one rank in one step, of one to three rows."""
    return [batch(10 * step + index, rank, rows=1 + (index + rank) % 3) for index in range(count)]


def gradients(model: nn.Module) -> Tensors:
    """Return the whole gradients; only of parameters that have one."""
    return {name: full(p.grad) for name, p in model.named_parameters() if p.grad is not None}


@dataclass
class Steps:
    """What training leaves: the gradients of each step, the runs of the body, the parameters."""

    gradients: list[Tensors] = field(default_factory=list)
    bodies: int = 0
    parameters: Tensors = field(default_factory=dict)


def train(
    comms: Comms, counts: Sequence[Sequence[int]], strategy: str = "FULL_SHARD", *, agree: bool = False
) -> Steps:
    """Train by SGD; ``counts`` holds each step's number of microbatches on each rank."""
    model = prepared(**STRATEGIES[strategy]())
    rank = dist.get_rank()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    steps = Steps()
    for step, numbers in enumerate(counts):
        optimizer.zero_grad()
        for tokens in microbatches(model, parts_of(step, rank, numbers[rank]), comms=comms, agree=agree):
            steps.bodies += 1
            torch.autograd.backward(loss_of(model, tokens) / sum(numbers))
        steps.gradients.append(gradients(model))
        optimizer.step()
    steps.parameters = {name: full(param) for name, param in model.named_parameters()}
    return steps
