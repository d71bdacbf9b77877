"""Parameters and losses that FSDP1 took and FSDP2 does not by itself, under both."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from fsdp_migrate.sharding.prepare import prepare_fully_shard, shard_plan
from tests.rank_bodies.parity import full


if TYPE_CHECKING:
    from collections.abc import Callable


class Convolutions(nn.Module):
    """Channels-last convolutions, and a transposed matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(2, 5, 3), nn.Tanh(), nn.Conv2d(5, 3, 3))
        self.body.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.mix = nn.Parameter(torch.randn(4, 3).t())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.body(x).mean((2, 3)) @ self.mix
        return out


class Empty(nn.Module):
    """Parameters without elements beside others, some of them in the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(2, 3)
        self.body.register_parameter("none", nn.Parameter(torch.zeros(0, 3)))
        self.rows = nn.Parameter(torch.zeros(0, 2))
        self.more_rows = nn.Parameter(torch.zeros(0))
        self.gain = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.mean((2, 3))
        out: torch.Tensor = self.body(torch.cat([rows, self.rows])) * self.gain + self.more_rows.sum()
        return out


MODELS: dict[str, Callable[[], nn.Module]] = {"not contiguous": Convolutions, "empty": Empty}


def _batch(step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
    return torch.randn(3, 2, 8, 8, generator=generator)


def train(name: str, strategy: str) -> dict[str, Any]:
    """Train by an optimizer from before sharding, used before; return losses and parameters of both."""
    warnings.simplefilter("ignore")
    found: dict[str, Any] = {}
    for prepared in (False, True):
        torch.manual_seed(0)
        model: Any = MODELS[name]()
        for at, (_, param) in enumerate(sorted(model.named_parameters())):
            param.number = at
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        arguments: dict[str, Any] = {
            "auto_wrap_policy": ModuleWrapPolicy({nn.Sequential, nn.Linear}),
            "sharding_strategy": ShardingStrategy[strategy],
            "use_orig_params": True,
            "device_id": torch.device("cpu"),
        }
        if prepared:
            prepare_fully_shard(model, arguments, optimizers=optimizer)
            found["codes"] = {finding.code for finding in shard_plan(model).findings}
        else:
            model = FSDP(model, **arguments)
        losses = []
        for step in range(3):
            loss = model(_batch(step)).square().mean()
            torch.autograd.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        found.setdefault("numbers", []).append({getattr(p, "number", None) for p in model.parameters()})
        if prepared:
            parameters = [full(param) for param in model.parameters()]
        else:
            with FSDP.summon_full_params(model):
                parameters = [param.detach().clone() for param in model.parameters()]
        found["prepared" if prepared else "FSDP1"] = (losses, parameters)
    return found


def _critic() -> Any:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), inner, nn.Linear(8, 1))


def penalise(strategy: str, units: bool, alone: bool) -> tuple[list[float], list[float], bool]:
    """Train a critic with a gradient penalty, prepared and plain with averaged gradients.

    FSDP1 is no reference: under NO_SHARD it goes on, but does not average the gradients of the second
    backward; otherwise it fails. Returns the losses, and whether gathered memory is freed in the end.
    """
    warnings.simplefilter("ignore")
    found = []
    model: Any = None
    for prepared in (False, True):
        model = _critic()
        if prepared:
            policy = {"auto_wrap_policy": ModuleWrapPolicy({nn.Sequential})} if units else {}
            prepare_fully_shard(model, {"device_id": "cpu", "sharding_strategy": strategy, **policy})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for step in range(3):
            x = _batch(step)[:, 0, 0, :4].clone().requires_grad_()
            out = model(x)
            (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
            loss = (slope.norm(dim=1) - 1).square().mean()
            if not alone:
                loss = loss + out.square().mean()
            torch.autograd.backward(loss)
            if not prepared:
                for param in model.parameters():
                    if param.grad is not None:
                        dist.all_reduce(param.grad)
                        param.grad /= dist.get_world_size()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        found.append(losses)
    torch.autograd.backward(model(_batch(0)[:, 0, 0, :4]).sum())
    groups = [unit._get_fsdp_state() for unit in model.modules() if hasattr(unit, "_get_fsdp_state")]
    params = [param for state in groups for param in _params(state)]
    freed = all(out.untyped_storage().size() == 0 for param in params for out in param.all_gather_outputs)
    return found[0], found[1], freed


def _params(state: Any) -> list[Any]:
    several = getattr(state, "_fsdp_param_groups", None)
    groups = [state._fsdp_param_group] if several is None else several
    return [param for group in groups if group is not None for param in group.fsdp_params]
