"""Ranks on which Lightning says what its hooks are given, under the strategies of FSDP1 and FSDP2."""

from __future__ import annotations

import copy
import logging
import os
import warnings
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy, Strategy
from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from fsdp_migrate import prepare_fully_shard


HOOKS = (
    *("on_fit_start", "on_sanity_check_start", "on_train_start", "on_train_batch_end", "on_validation_end"),
    *("on_before_optimizer_step", "on_train_epoch_end", "on_train_end", "on_fit_end"),
)
Seen = dict[str, str]


class _OnTheCPU(FSDPStrategy):
    """FSDP1 by Lightning's strategy, which refuses the CPU where it makes the model."""

    def _setup_model(self, model: nn.Module) -> nn.Module:
        return FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)


class _Module(pl.LightningModule):
    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self.model = nn.Linear(4, 4)
        self.seen = seen
        self.kept = list(self.model.parameters())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        own = {id(each) for each in self.parameters()}
        self.seen["kept"] = str(all(id(each) in own for each in self.kept))
        self.seen["configure_optimizers"] = _what(self)
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        loss: torch.Tensor = self.model(batch[0]).sum()
        return loss

    def validation_step(self, batch: Any, _: int) -> None:
        self.model(batch[0])


class _Sharding(_Module):
    def configure_model(self) -> None:
        if not isinstance(self, FSDPModule):
            assert self.device_mesh is not None
            prepare_fully_shard(self, {}, mesh=self.device_mesh["data_parallel"])
            for name in ("training_step", "validation_step"):
                register_fsdp_forward_method(self, name)


def _what(model: nn.Module) -> str:
    """Return what its parameters are, as the state dict holds them where they are FSDP2's."""
    parameter = next(model.parameters())
    if isinstance(model, FSDPModule):
        return "DTensor" if isinstance(next(iter(model.state_dict().values())), DTensor) else "plain"
    return f"{parameter.ndim}"


def watch(version: int, folder: str) -> Seen:
    """Train a step, and return what was seen in each hook of a callback and of the module."""
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), NODE_RANK="0", WORLD_SIZE=str(ranks))
    seen: Seen = {}
    two = ModelParallelStrategy(data_parallel_size=ranks, tensor_parallel_size=1)
    strategy: Strategy = _OnTheCPU() if version == 1 else two
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=ranks,
        strategy=strategy,
        max_steps=1,
        val_check_interval=1,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        callbacks=[_callback(seen)],
        default_root_dir=folder,
    )
    batches = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(4, 4)), batch_size=2)
    made = _Module if version == 1 else _Sharding
    model = type("Watched", (made,), {name: _hook(seen, name, None) for name in HOOKS})(seen)
    trainer.fit(model, batches, batches)
    return seen


def _callback(seen: Seen) -> pl.Callback:
    made: pl.Callback = type("Seeing", (pl.Callback,), {name: _hook(seen, name, 1) for name in HOOKS})()
    return made


def _hook(seen: Seen, name: str, place: int | None) -> Any:
    def method(self: Any, *args: Any) -> None:
        model = self if place is None else args[place]
        seen[f"{name} {'module' if place is None else 'callback'}"] = _what(model)
        if name == "on_train_start" and place is not None:
            try:
                copy.deepcopy(model)
            except AssertionError as error:
                seen["copy"] = str(error)

    return method
