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
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor

from fsdp_migrate import prepare_fully_shard
from fsdp_migrate.adapters.engine.lightning_groups import WITH_GLOO
from fsdp_migrate.adapters.engine.lightning_hook import hook_code


HOOKS = (
    *("on_fit_start", "on_sanity_check_start", "on_train_start", "on_train_batch_end", "on_validation_end"),
    *("on_before_optimizer_step", "on_train_epoch_end", "on_train_end", "on_fit_end"),
)
Seen = dict[str, str]


class _OnTheCPU(FSDPStrategy):
    """FSDP1 by Lightning's strategy, which refuses the CPU where it makes the model."""

    def _setup_model(self, model: nn.Module) -> nn.Module:
        return FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)


def _trainer(folder: str, **given: Any) -> pl.Trainer:
    """Return a Trainer of the ranks that are here, on the CPU, which writes and says nothing more."""
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), NODE_RANK="0", WORLD_SIZE=str(ranks))
    quiet = dict.fromkeys(
        ("logger", "enable_progress_bar", "enable_checkpointing", "enable_model_summary"), False
    )
    return pl.Trainer(accelerator="cpu", devices=ranks, default_root_dir=folder, **{**quiet, **given})


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
    ranks = dist.get_world_size()
    seen: Seen = {}
    two = ModelParallelStrategy(data_parallel_size=ranks, tensor_parallel_size=1)
    strategy: Strategy = _OnTheCPU() if version == 1 else two
    trainer = _trainer(
        folder,
        strategy=strategy,
        max_steps=1,
        val_check_interval=1,
        callbacks=[_callback(seen)],
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


class _Accumulating(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        loss: torch.Tensor = self.model(batch[0]).square().mean()
        return loss


class _Recording(pl.Callback):
    """Keeps whole gradients, as the optimizer steps with them."""

    def __init__(self) -> None:
        self.gradients: list[torch.Tensor] = []

    def on_before_optimizer_step(self, trainer: pl.Trainer, module: pl.LightningModule, _: Any) -> None:
        del module
        assert trainer.model is not None
        for parameter in trainer.model.parameters():
            found: Any = parameter.grad
            if isinstance(found, DTensor):
                self.gradients.append(found.full_tensor().flatten())
            elif found is not None and found.numel():
                self.gradients.append(found.flatten().clone())


def accumulate(kind: str, folder: str) -> list[torch.Tensor]:
    """Return the gradients that four microbatches add up to: under FSDP1, by our hook, or by a bare one."""
    ranks = dist.get_world_size()
    names: dict[str, Any] = {}
    exec(hook_code({"sharding_strategy": "FULL_SHARD"}), names)
    hook = names["configure_model"]
    methods: dict[str, Any] = {"ours": {"configure_model": hook}, "bare": {"configure_model": _without(hook)}}
    two = ModelParallelStrategy(data_parallel_size=ranks, tensor_parallel_size=1)
    recording = _Recording()
    trainer = _trainer(
        folder,
        strategy=_OnTheCPU() if kind == "fsdp1" else two,
        max_steps=1,
        accumulate_grad_batches=4,
        callbacks=[recording],
    )
    torch.manual_seed(1)
    data = torch.utils.data.TensorDataset(torch.randn(8 * ranks, 16))
    model = type("Accumulating", (_Accumulating,), methods.get(kind, {}))()
    trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=2))
    return recording.gradients


def _cut(module: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Return a module's state without a part."""
    given = pl.LightningModule.state_dict(module, *args, **kwargs)
    return {name: value for name, value in given.items() if "model.0" not in name}


def _counted(module: Any) -> None:
    """Count what the strategy takes for the whole state."""
    module.count = len(module.trainer.strategy.lightning_module_state_dict())


def count_of_state(version: int, folder: str) -> int:
    """Return how many values a checkpoint has of a module that leaves two of four out of its state."""
    ranks = dist.get_world_size()
    names: dict[str, Any] = {}
    exec(hook_code({"sharding_strategy": "FULL_SHARD"}), names)
    two = ModelParallelStrategy(data_parallel_size=ranks, tensor_parallel_size=1)
    trainer = _trainer(
        folder,
        strategy=_OnTheCPU(state_dict_type="sharded") if version == 1 else two,
        max_steps=1,
    )
    data = torch.utils.data.TensorDataset(torch.randn(2 * ranks, 16))
    methods: dict[str, Any] = {"configure_model": names["configure_model"]} if version == 2 else {}
    methods |= {"state_dict": _cut, "on_train_end": _counted}
    model: Any = type("Cut", (_Accumulating,), methods)()
    trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=2))
    count: int = model.count
    return count


class _ByHand(pl.LightningModule):
    """Steps by itself, and clears gradients above its forward, or right above its backward."""

    def __init__(self, clears: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16))
        self.automatic_optimization = False
        self.clears, self.losses = clears, list[float]()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def training_step(self, batch: Any, _: int) -> None:
        optimizer: Any = self.optimizers()
        if self.clears == "before":
            optimizer.zero_grad()
        loss = self.model(batch[0]).square().mean()
        self.losses.append(float(loss))
        if self.clears == "between":
            optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()


class _UnitOnTheCPU(_OnTheCPU):
    """As that, with the model a unit: a backward in a step stops at trained parameters outside of units."""

    def _setup_model(self, model: nn.Module) -> nn.Module:
        units = ModuleWrapPolicy({nn.Sequential})
        device = torch.device("cpu")
        return FullyShardedDataParallel(model, auto_wrap_policy=units, device_id=device, use_orig_params=True)


def step_by_hand(version: int, clears: str, folder: str) -> list[float]:
    """Return the losses of four steps that a module takes by itself."""
    ranks = dist.get_world_size()
    names: dict[str, Any] = {}
    exec(hook_code({"sharding_strategy": "FULL_SHARD", "auto_wrap_policy": ["Sequential"]}), names)
    two = ModelParallelStrategy(data_parallel_size=ranks, tensor_parallel_size=1)
    trainer = _trainer(
        folder,
        strategy=_UnitOnTheCPU() if version == 1 else two,
        max_steps=4,
    )
    torch.manual_seed(1)
    data = torch.utils.data.TensorDataset(torch.randn(8 * ranks, 16))
    methods = {"configure_model": names["configure_model"]} if version == 2 else {}
    model: Any = type("ByHand", (_ByHand,), methods)(clears)
    trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=2))
    losses: list[float] = model.losses
    return losses


def offload(folder: str) -> tuple[bool, float]:
    """Train one step with clipping by the hook of a run that offloads, over a group that is told of gloo.

    Return whether the model's mesh is of the group of all ranks, and the norm of its whole gradients.
    """
    ranks = dist.get_world_size()
    names: dict[str, Any] = {}
    exec(hook_code({"cpu_offload": True}), names)
    backend = WITH_GLOO.partition(",")[0]  # there is no GPU here
    trainer = _trainer(
        folder,
        strategy=ModelParallelStrategy(
            data_parallel_size=ranks, tensor_parallel_size=1, process_group_backend=backend
        ),
        max_steps=1,
        gradient_clip_val=1e-3,
    )
    data = torch.utils.data.TensorDataset(torch.randn(2 * ranks, 16))
    model: Any = type("Offloaded", (_Accumulating,), {"configure_model": names["configure_model"]})()
    trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=2))
    found: Any = next(iter(model.parameters()))
    gradients = [each.grad.full_tensor().flatten() for each in model.parameters()]
    return found.device_mesh.get_group() is dist.group.WORLD, float(torch.cat(gradients).norm())


def _without(hook: Any) -> Any:
    """Return the hook with nothing for the Trainer to enter."""

    def configure_model(self: Any) -> None:
        hook(self)
        del self.no_sync

    return configure_model
