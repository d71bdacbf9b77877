"""Lightning's Fabric on ranks without a GPU: what its FSDP1 saves, and what its FSDP2 loads of it."""

from __future__ import annotations

import logging
import os
import warnings
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel as FSDP

from fsdp_migrate import load_checkpoint, prepare_fully_shard


Found = dict[str, Any]
NAMES = {"model": "net", "optimizer": "adam"}
"""What the script calls its model and its optimizer."""


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.down(self.up(x).relu())
        return found


def save(path: str, kind: str, average: str = "") -> Found:
    """Train two steps under ``FSDPStrategy``, save by ``fabric.save``, and return what was saved, whole.

    The average is kept as scripts keep it: by the names that the model shows where its parameters are whole.
    """
    from lightning.fabric.strategies.fsdp import FSDPStrategy

    # A class of its own, because Fabric refuses FSDPStrategy itself without a GPU.
    on_cpu = type("OnCpu", (FSDPStrategy,), {})
    fabric = _fabric(on_cpu(state_dict_type=kind, use_orig_params=True))
    with mock.patch.object(FSDP, "__init__", _on_cpu):
        model = fabric.setup_module(_Net())
    optimizer = fabric.setup_optimizers(torch.optim.AdamW(model.parameters(), lr=0.1))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer.optimizer, 1, 0.5)
    for step in range(2):
        torch.manual_seed(step)
        fabric.backward(model(torch.randn(2, 4)).square().sum())
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    state = {NAMES["model"]: model, NAMES["optimizer"]: optimizer, "step": 2}
    if average == "schedule":
        state |= {average: scheduler, "history": [0.5, 0.25]}
    elif average:
        with FSDP.summon_full_params(model, writeback=False):
            state[average] = {name: value.detach().clone() for name, value in model.named_parameters()}
    with mock.patch.object(FSDP, "state_dict_type", _without_offload):
        fabric.save(path, state)
    return _whole(model, optimizer)


def load(path: str) -> Found:
    """Load it by ``fabric.load`` into what we shard under ``ModelParallelStrategy``."""
    from lightning.fabric.strategies.model_parallel import ModelParallelStrategy

    def shard(model: nn.Module, mesh: Any) -> nn.Module:
        return prepare_fully_shard(model, {}, mesh=mesh["data_parallel"])

    fabric = _fabric(ModelParallelStrategy(shard, data_parallel_size=2, tensor_parallel_size=1))
    model = fabric.setup_module(_Net())
    optimizer = fabric.setup_optimizers(torch.optim.AdamW(model.parameters(), lr=0.5))
    state = {NAMES["model"]: model, NAMES["optimizer"]: optimizer, "step": 0}
    left = fabric.load(path, state)
    names = [name for name, _ in model.named_parameters()]
    return {**_whole(model, optimizer), "step": state["step"], "left": left, "names": names}


def load_here(path: str) -> Found:
    """Load it by ``load_checkpoint``, with what Fabric keeps beside model and optimizer."""
    model = _Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    model = prepare_fully_shard(model, {}, optimizers=optimizer)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    report = load_checkpoint(path, model, optimizer, extra={"schedule": scheduler, "step": 0})
    bare = load_checkpoint(path, model, optimizer)
    (left,) = [found for found in bare.findings if found.code == "FM431"]
    return {
        "lr": scheduler.get_last_lr(),
        "epochs": scheduler.last_epoch,
        "values": report.values,
        "left": left.message,
    }


def _fabric(strategy: Any) -> Any:
    import lightning

    warnings.simplefilter("ignore")
    logging.getLogger("lightning.fabric").setLevel(logging.ERROR)
    os.environ["NODE_RANK"] = "0"
    fabric = lightning.Fabric(accelerator="cpu", devices=dist.get_world_size(), strategy=strategy)
    fabric.launch()
    return fabric


_init, _state_dict_type = FSDP.__init__, FSDP.state_dict_type


def _on_cpu(self: FSDP, module: nn.Module, **given: Any) -> None:
    _init(self, module, **{**given, "device_id": torch.device("cpu")})


def _without_offload(module: nn.Module, *, state_dict_type: Any, **configs: Any) -> Any:
    """Copy nothing "to the CPU", which frees what it copies from where that is on the CPU."""
    for config in configs.values():
        config.offload_to_cpu = False
    return _state_dict_type(module, state_dict_type, **configs)


def _whole(model: Any, optimizer: Any) -> Found:
    options = StateDictOptions(full_state_dict=True)
    root: Any = next(module for module in model.modules() if isinstance(module, FSDP | FSDPModule))
    weights, found = get_state_dict(root, optimizer.optimizer, options=options)
    states: Found = dict(found)
    group = states["param_groups"][0]
    return {"model": weights, "optimizer": states["state"], "lr": group["lr"]}
