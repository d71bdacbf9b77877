"""Ranks that train with optimizers of other packages: under FSDP1, prepared, and without sharding."""

from __future__ import annotations

import importlib
import importlib.util
import math
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.optim import Optimizer

from fsdp_migrate import load_checkpoint, prepare_fully_shard, shard_plan
from fsdp_migrate.errors import CheckpointFormatError, FindingsError, OptimizerError
from fsdp_migrate.runtime import end_process_group, full_optimizer_state_dict
from tests.rank_bodies.loading import _save


if TYPE_CHECKING:
    from collections.abc import Callable

WIDTH = 128
"""So that a rank's rows of a weight are whole blocks of 8192 elements, which are packed."""
# Module, class, settings, and what becomes of it.
_CLASSES: tuple[tuple[str, str, dict[str, Any], str], ...] = (
    *(
        ("bitsandbytes.optim", name, {"lr": 1e-2}, "refused")
        for name in ("Adam8bit", "AdamW8bit", "Lion8bit", "PagedAdamW8bit", "PagedLion8bit", "PagedAdamW")
    ),
    *(("torchao.optim", name, {"lr": 1e-2}, "blocks") for name in ("AdamW8bit", "AdamW4bit", "AdamWFp8")),
    ("lion_pytorch", "Lion", {"lr": 1e-3}, "alone"),
    ("pytorch_optimizer", "Lion", {"lr": 1e-3}, "alone"),
    *(
        ("pytorch_optimizer", name, {"lr": 1e-2}, "refused")
        for name in ("Shampoo", "ScalableShampoo", "SOAP", "Lamb", "LARS", "CAME", "AdaFactor")
    ),
    ("transformers.optimization", "Adafactor", {}, "refused"),
    (__name__, "Sorting", {}, "whole"),
    # Of repositories that no index has (microsoft/dion, facebookresearch/optimizers): on PYTHONPATH.
    *(("dion", name, {"lr": 1e-2}, "mesh") for name in ("Muon", "Dion2", "NorMuon")),
    ("distributed_shampoo", "DistributedShampoo", {"lr": 1e-2, "max_preconditioner_dim": 128}, "mesh"),
)


class Sorting(Optimizer):
    """Muon for matrices and SGD for the rest, noted in the state, as Moonlight has Muon and AdamW."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 1e-2})
        for param in self.param_groups[0]["params"]:
            self.state[param]["use_muon"] = param.ndim >= 2

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        del closure
        for param in self.param_groups[0]["params"]:
            if param.grad is None:  # FSDP1's ranks had parts of some parameters alone
                continue
            state = self.state[param]
            mean = state.setdefault("mean", torch.zeros_like(param)).lerp_(param.grad, 0.1)
            if not state["use_muon"]:
                param.sub_(mean.sign(), alpha=self.param_groups[0]["lr"])
                continue
            x = mean / (mean.norm() + 1e-7)
            for _ in range(3):
                a = x @ x.T
                x = 1.5 * x - 0.5 * a @ x
            param.sub_(x, alpha=self.param_groups[0]["lr"] * math.sqrt(max(param.shape)))


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module.partition(".")[0]) is not None


CASES = {
    f"{module.partition('.')[0]}.{name}": end for module, name, _, end in _CLASSES if _is_installed(module)
}
"""What becomes of each optimizer that is installed."""


def _maker(case: str) -> Callable[..., Any]:
    for module, name, settings, _ in _CLASSES:
        if case == f"{module.partition('.')[0]}.{name}":
            return partial(getattr(importlib.import_module(module), name), **settings)
    raise KeyError(case)


def _net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    layers = (nn.Linear(WIDTH, WIDTH), nn.Sequential(nn.Tanh(), nn.Linear(WIDTH, WIDTH)))
    return nn.Sequential(*layers).to(ARGUMENTS["device_id"])


ARGUMENTS: dict[str, Any] = {
    "auto_wrap_policy": ModuleWrapPolicy({nn.Linear}),
    "use_orig_params": True,
    "device_id": torch.device("cpu"),
}


def _steps(model: nn.Module, optimizer: Any, steps: range, *, average: bool = False) -> list[float]:
    losses = []
    for step in steps:
        generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
        x = torch.randn(8, WIDTH, generator=generator).to(ARGUMENTS["device_id"])
        loss = (model(x) - x.roll(1, 0)).square().mean()
        loss.backward()
        for param in model.parameters() if average else ():
            assert param.grad is not None
            dist.all_reduce(param.grad)
            param.grad /= dist.get_world_size()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def compare_all(folder: str, cases: dict[str, str] = CASES) -> dict[str, dict[str, Any]]:
    """Train by every optimizer."""
    warnings.simplefilter("ignore")
    found = {}
    # What torchao compiles is run as it is written: compiling takes seconds each.
    with torch.compiler.set_stance("force_eager"):
        for case, end in cases.items():
            where = Path(folder, case)
            where.mkdir(parents=True, exist_ok=True)
            dist.barrier()
            found[case] = _with_mesh(case) if end == "mesh" else _compare(_maker(case), end, where)
    return found


def _with_mesh(case: str) -> dict[str, Any]:
    """Train by an optimizer that does its own communication: prepared, and as torch shards by hand."""
    device = ARGUMENTS["device_id"].type
    prepared, by_hand = prepare_fully_shard(_net(), ARGUMENTS), _net()
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    for unit in (by_hand[0], by_hand[1], by_hand):
        fully_shard(unit, mesh=mesh)
    own: dict[str, Any] = {"distributed_mesh": mesh}
    if case.startswith("distributed_shampoo"):
        kind = importlib.import_module("distributed_shampoo").FullyShardDistributedConfig
        own = {"distributed_config": kind()}
    found = {}
    for name, model in {"prepared": prepared, "by hand": by_hand}.items():
        groups: list[dict[str, Any]] = [{"params": [each for each in model.parameters() if each.ndim > 1]}]
        groups += [{"params": [each for each in model.parameters() if each.ndim == 1]}]
        if case.startswith("dion"):
            groups[1]["algorithm"] = "adamw"
        found[name] = _steps(model, _maker(case)(groups, **own), range(4))
    return found


def compare_on(device: str, folder: str) -> dict[str, dict[str, Any]]:
    """Train by every optimizer on one rank with a device of its own."""
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    ARGUMENTS["device_id"] = torch.device(device, 0) if device == "cuda" else torch.device(device)
    try:
        return compare_all(folder)
    finally:
        end_process_group()
        ARGUMENTS["device_id"] = torch.device("cpu")


def _compare(make: Callable[..., Any], end: str, folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    model = _net()
    optimizer = make(list(model.parameters()))
    try:
        prepare_fully_shard(model, ARGUMENTS, optimizers=optimizer)
    except FindingsError as error:
        return {
            "codes": [each.code for each in error.findings],
            "is_whole": type(model[0].weight) is nn.Parameter,
        }
    about = [each.code for each in shard_plan(model).findings if each.subject.startswith("optimizers.")]
    found["codes"] = about
    found["prepared"] = _steps(model, optimizer, range(4))
    plain = _net()
    found["plain"] = _steps(plain, make(list(plain.parameters())), range(4), average=True)
    if end == "blocks":
        _save_packed(model, optimizer, make, folder, found)
        return found
    wrapped = FSDP(_net(), **ARGUMENTS)
    optimizer = make(list(wrapped.parameters()))
    first = _steps(wrapped, optimizer, range(2))
    _save(folder, "sharded", wrapped, optimizer, {})
    found["FSDP1"] = [*first, *_steps(wrapped, optimizer, range(2, 4))]
    model = _net(5)
    prepare_fully_shard(model, ARGUMENTS)
    optimizer = make(list(model.parameters()))
    report = load_checkpoint(folder, model, optimizer)
    found["loaded"] = _steps(model, optimizer, range(2, 4))
    found["said"] = [each.code for each in report.findings if each.fidelity == "changed"]
    return found


def _save_packed(
    model: nn.Module, optimizer: Any, make: Callable[..., Any], folder: Path, found: dict[str, Any]
) -> None:
    """Go on from torch's own checkpoint, and note what is said where there is no other way."""
    states = get_state_dict(model, optimizer)
    save(dict(zip(("model", "optimizer"), states, strict=True)), checkpoint_id=folder)
    again = _net(5)
    prepare_fully_shard(again, ARGUMENTS)
    other = make(list(again.parameters()))
    state: dict[str, Any] = dict(zip(("model", "optimizer"), get_state_dict(again, other), strict=True))
    load(state, checkpoint_id=folder)
    set_state_dict(again, other, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    found["next"] = _steps(model, optimizer, range(4, 6)), _steps(again, other, range(4, 6))
    found["errors"] = [
        _error(call)
        for call in (
            partial(full_optimizer_state_dict, model, optimizer),
            partial(load_checkpoint, folder, again, other),
            partial(_move, make),
        )
    ]


def _error(call: Callable[[], Any]) -> str:
    try:
        call()
    except (CheckpointFormatError, OptimizerError) as error:
        return str(error)
    return "no error"


def _move(make: Callable[..., Any]) -> None:
    """Give an optimizer to be sharded that has stepped."""
    model = _net()
    optimizer = make(list(model.parameters()))
    _steps(model, optimizer, range(1), average=True)
    prepare_fully_shard(model, ARGUMENTS, optimizers=optimizer)
