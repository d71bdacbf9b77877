"""Ranks on which Fabric clips gradients, and on which its norm is read in several ways."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

from tests.frameworks.kept_parameters_bodies import Net, environment


if TYPE_CHECKING:
    from collections.abc import Callable


def by_fabric(version: int) -> dict[str, str]:
    """Return what each use of the norm gives, or the name of what it raises."""
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
    model: Any = fabric.setup_module(Net())
    optimizer: Any = fabric.setup_optimizers(torch.optim.SGD(model.parameters(), lr=0.1))
    fabric.backward(model(torch.ones(4, 8)).square().sum())
    norm: Any = fabric.clip_gradients(model, optimizer, max_norm=1e9)
    uses: dict[str, Callable[[], Any]] = {
        "number": lambda: (norm.item(), float(norm))[0],
        "whole": lambda: norm.full_tensor().item() if version == 2 else norm.item(),
        "text": lambda: f"{norm:.3f}",
        "array": norm.numpy,
        "list": lambda: torch.tensor([norm, 1.0]),
        "collective": lambda: fabric.all_reduce(norm),
    }
    return {name: _given(use) for name, use in uses.items()}


def _given(use: Callable[[], Any]) -> str:
    try:
        return str(use())
    except Exception as error:
        return type(error).__name__
