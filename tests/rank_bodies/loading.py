"""Ranks that load checkpoints without converting them, and return what they then hold, whole."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel as FSDP,
    ShardingStrategy,
    StateDictType,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from fsdp_migrate import load_checkpoint, prepare_fully_shard
from tests.models import VOCABULARY, Block, Net
from tests.rank_bodies.conversions import _full


if TYPE_CHECKING:
    from collections.abc import Mapping

    from fsdp_migrate.checkpoint_convert import SourceOptions


Flat = dict[str, Any]


def model_of(tensors: Mapping[str, torch.Tensor]) -> nn.Module:
    """Make a model that has tensors of these names, shapes and types, with other values."""
    root = nn.Module()
    for name, tensor in tensors.items():
        module = root
        *above, last = name.split(".")
        for step in above:
            if not hasattr(module, step):
                module.add_module(step, nn.Module())
            module = module.get_submodule(step)
        value = torch.full_like(tensor, 3)
        if tensor.ndim and tensor.is_floating_point():
            module.register_parameter(last, nn.Parameter(value))
        else:
            module.register_buffer(last, value)
    return root


def load_each(cases: list[tuple[str, SourceOptions, Flat, list[Flat]]]) -> list[Flat]:
    """Load each checkpoint into a model of its tensors and an optimizer of its groups; return all of it."""
    warnings.simplefilter("ignore")
    found = []
    for path, options, tensors, groups in cases:
        model = model_of(tensors)
        fully_shard(model)
        names = dict(model.named_parameters())
        optimizer = None
        if groups:
            own = [{"params": [names[name] for name in group["params"]]} for group in groups]
            optimizer = torch.optim.AdamW(own, lr=5.0)
        report = load_checkpoint(path, model, optimizer or (), options=options)
        found.append({**whole(model, optimizer), "codes": sorted({f.code for f in report.findings})})
    return found


def whole(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> Flat:
    """Return everything whole, by name."""
    found: Flat = {f"model.{name}": _full(value) for name, value in model.state_dict().items()}
    if optimizer is None:
        return found
    names: dict[Any, str] = {parameter: name for name, parameter in model.named_parameters()}
    for parameter, fields in optimizer.state.items():
        for name, value in fields.items():
            found[f"optimizer.{names[parameter]}.{name}"] = _full(value)
    found["groups"] = [
        {**{k: v for k, v in g.items() if k != "params"}, "params": [names[p] for p in g["params"]]}
        for g in optimizer.param_groups
    ]
    return found


def tokens_of(step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
    return torch.randint(0, VOCABULARY, (3, 5), generator=generator)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range, scheduler: Any) -> list[float]:
    """Train some steps and return the losses."""
    losses = []
    for step in steps:
        tokens = tokens_of(step)
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


ARGUMENTS: dict[str, Flat] = {
    "sharded": {"use_orig_params": True},
    "full": {"use_orig_params": True},
    "flat": {"use_orig_params": False},
    "ranks": {"use_orig_params": True},
    "hsdp": {"use_orig_params": True},
}


def _scheduler(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)


def run_fsdp1(folder: str, kind: str, last: int = 4) -> list[float]:
    """Train FSDP1 two steps, save it, and return the losses of the next ones."""
    warnings.simplefilter("ignore")
    model, optimizer, scheduler = _fsdp1(kind)
    train(model, optimizer, range(2), scheduler)
    _save(Path(folder), kind, model, optimizer, {"scheduler": scheduler.state_dict(), "step": 2})
    return train(model, optimizer, range(2, last), scheduler)


def _fsdp1(kind: str) -> tuple[FSDP, torch.optim.Optimizer, Any]:
    torch.manual_seed(1)
    options: Flat = dict(ARGUMENTS[kind])
    if kind == "hsdp":
        options["device_mesh"] = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        options["sharding_strategy"] = ShardingStrategy.HYBRID_SHARD
    policy = ModuleWrapPolicy({Block})
    model = FSDP(Net(), auto_wrap_policy=policy, device_id=torch.device("cpu"), **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return model, optimizer, _scheduler(optimizer)


def _save(folder: Path, kind: str, model: FSDP, optimizer: Any, more: Flat) -> None:
    rank = dist.get_rank()
    folder.mkdir(parents=True, exist_ok=True)
    if kind in ("sharded", "hsdp"):
        with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
            state = {"model": model.state_dict(), "optimizer": FSDP.optim_state_dict(model, optimizer)}
            save({**state, **more}, checkpoint_id=folder)
    elif kind == "ranks":
        with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
            state = {"model": model.state_dict(), "optimizer": FSDP.optim_state_dict(model, optimizer)}
            torch.save({**state, **more}, folder / f"state_rank{rank}.pt")
    elif kind == "full":
        # Moved to the CPU by torch, a full optimizer state of a CPU is corrupt.
        ways = (
            FullStateDictConfig(rank0_only=True),
            FullOptimStateDictConfig(rank0_only=True, offload_to_cpu=False),
        )
        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, *ways):
            state = {"model": model.state_dict(), "optimizer": FSDP.optim_state_dict(model, optimizer)}
        if rank == 0:
            torch.save({**state, **more}, folder / "state.pt")
    else:
        with FSDP.state_dict_type(model, StateDictType.LOCAL_STATE_DICT):
            torch.save(model.state_dict(), folder / f"pytorch_model_fsdp_rank{rank}.bin")
        torch.save(optimizer.state_dict(), folder / f"optimizer_0_rank{rank}.bin")
    dist.barrier()


def resume_fsdp2(folder: str, kind: str, arguments: Flat | None = None) -> Flat:
    """Load what FSDP1 saved into FSDP2, and return the next losses and what the report says."""
    warnings.simplefilter("ignore")
    torch.manual_seed(7)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)
    given: Flat = {**ARGUMENTS[kind], "auto_wrap_policy": {Block}, "device_id": "cpu"}
    if kind == "hsdp":
        given["device_mesh"] = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        given["sharding_strategy"] = "HYBRID_SHARD"
    model = prepare_fully_shard(model, given, optimizers=optimizer)
    scheduler = _scheduler(optimizer)
    extra = {} if kind == "flat" else {"scheduler": scheduler, "step": 0}
    report = load_checkpoint(folder, model, optimizer, extra=extra, **(arguments or {}))
    if kind == "flat":
        scheduler.last_epoch = 2
    return {
        "losses": train(model, optimizer, range(2, 4), scheduler),
        "step": report.values.get("step"),
        "lr": [group["lr"] for group in optimizer.param_groups],
        "report": report.as_dict(),
    }


def go_there_and_back(folder: str, back: str) -> list[float]:
    """Load FSDP1's checkpoint into FSDP2, train two steps, and let FSDP1 go on from what torch saves."""
    warnings.simplefilter("ignore")
    torch.manual_seed(7)
    model: Any = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)
    given: Flat = {"use_orig_params": True, "auto_wrap_policy": {Block}, "device_id": "cpu"}
    model = prepare_fully_shard(model, given, optimizers=optimizer)
    scheduler = _scheduler(optimizer)
    load_checkpoint(folder, model, optimizer, extra={"scheduler": scheduler, "step": 0})
    losses = train(model, optimizer, range(2, 4), scheduler)
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state: Flat = {"model": model_state, "optimizer": optimizer_state, "scheduler": scheduler.state_dict()}
    save(state, checkpoint_id=back)

    old, old_optimizer, old_scheduler = _fsdp1("sharded")
    model_state, optimizer_state = get_state_dict(old, old_optimizer)
    state = {"model": model_state, "optimizer": optimizer_state, "scheduler": old_scheduler.state_dict()}
    dcp_load(state, checkpoint_id=back)
    set_state_dict(old, old_optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    old_scheduler.load_state_dict(state["scheduler"])
    return losses + train(old, old_optimizer, range(4, 6), old_scheduler)
