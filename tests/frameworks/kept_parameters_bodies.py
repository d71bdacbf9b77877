"""Ranks on which frameworks shard a model of which a list of parameters was made before."""

from __future__ import annotations

import logging
import os
import warnings
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState, DistributedType, PartialState
from accelerate.utils import FullyShardedDataParallelPlugin
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor


Seen = dict[str, Any]


class Net(nn.Module):
    """A part that is trained, and one that is not."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 8)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        """Return one number for each element."""
        out: torch.Tensor = self.frozen(self.head(self.body(given)))
        return out


def environment() -> None:
    """Say to a framework which rank this is."""
    warnings.simplefilter("ignore")
    logging.getLogger("lightning").setLevel(logging.ERROR)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), NODE_RANK="0", WORLD_SIZE=str(ranks))


def _are_its(kept: list[nn.Parameter], model: nn.Module) -> bool:
    own = {id(each) for each in model.parameters()}
    return all(id(each) in own for each in kept)


def _batch() -> torch.Tensor:
    torch.manual_seed(dist.get_rank() + 1)
    return torch.randn(4, 8)


def _local_norm(model: nn.Module) -> float:
    grads = [each.grad for each in model.parameters() if each.grad is not None]
    parts = [each.to_local() if isinstance(each, DTensor) else each for each in grads]
    return float(torch.stack([part.norm() for part in parts]).norm())


def _number(norm: torch.Tensor) -> float:
    """Return a norm: on torch 2.7 ``float`` of a DTensor is one rank's part."""
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)


def by_accelerate(version: int) -> Seen:
    """Return what lists from before ``prepare`` are, and how those, a part, and a lost model clip."""
    environment()
    several = mock.Mock(return_value=("gloo", DistributedType.MULTI_GPU))

    def take_the_cpu(state: Any) -> None:
        state.device = torch.device("cpu")

    with (
        mock.patch.object(PartialState, "_prepare_backend", several),
        mock.patch.object(PartialState, "set_device", take_the_cpu),
    ):
        AcceleratorState._reset_state(reset_partial_state=True)
        kind: Seen = {"use_orig_params": True} if version == 1 else {}
        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=version, auto_wrap_policy="no_wrap", cpu_ram_efficient_loading=False, **kind
        )
        accelerator = Accelerator(fsdp_plugin=plugin)
        model = Net()
        kept = [each for each in model.parameters() if each.requires_grad]
        optimizer = torch.optim.SGD(kept, lr=0.1)
        model, optimizer = accelerator.prepare(model, optimizer)
        accelerator.backward(model(_batch()).square().sum())
        seen = {
            "kept": _are_its(kept, model),
            "optimizer": _are_its(optimizer.param_groups[0]["params"], model),
            "whole": _number(accelerator.clip_grad_norm_(model.parameters(), 1e9)),
        }
        part = accelerator.clip_grad_norm_(model.head.parameters(), 1e9)
        seen |= {"part": _number(part), "is_dtensor": isinstance(part, DTensor)}
        accelerator.free_memory()
        seen["forgotten"] = _number(accelerator.clip_grad_norm_(model.parameters(), 1e9))
        accelerator.clip_grad_norm_(kept, 1e-3)
        return {**seen, "clipped": _local_norm(model)}


def by_fabric(version: int) -> Seen:
    """Return what lists and optimizers from before ``setup_module`` are."""
    from lightning.fabric import Fabric
    from lightning.fabric.strategies.fsdp import FSDPStrategy
    from lightning.fabric.strategies.model_parallel import ModelParallelStrategy

    environment()

    class OnTheCPU(FSDPStrategy):
        def setup_module(self, module: nn.Module) -> nn.Module:
            return FullyShardedDataParallel(module, device_id=torch.device("cpu"), use_orig_params=True)

    def shard(model: nn.Module, mesh: Any) -> nn.Module:
        fully_shard(model, mesh=mesh["data_parallel"])
        return model

    two = ModelParallelStrategy(parallelize_fn=shard, data_parallel_size=2, tensor_parallel_size=1)
    strategy: Any = OnTheCPU() if version == 1 else two
    fabric = Fabric(accelerator="cpu", devices=2, strategy=strategy)
    fabric.launch()
    net = Net()
    kept = list(net.parameters())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    model = fabric.setup_module(net)
    prepared: Any = fabric.setup_optimizers(optimizer)
    return {
        "kept": _are_its(kept, model),
        "optimizer": _are_its(prepared.param_groups[0]["params"], model),
    }
