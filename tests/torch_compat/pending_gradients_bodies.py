"""Models of which a batch uses a part: FSDP1 reduces the unit as a whole."""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from fsdp_migrate.microbatch import microbatches
from fsdp_migrate.runtime import no_sync
from fsdp_migrate.sharding.prepare import prepare_fully_shard
from tests.rank_bodies.parity import Run, full


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Experts(nn.Module):
    """One unit of three experts, one of which runs, and a parameter that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))
        self.lone = nn.Parameter(torch.ones(5))

    def forward(self, x: torch.Tensor, which: int) -> torch.Tensor:
        out: torch.Tensor = self.experts[which](x)
        return x + out


class Mixture(nn.Module):
    """Units of experts: the second is skipped where ``skips`` says so, the third always."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.never = Experts(), Experts(), Experts()
        self.out = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor, which: int, skips: bool) -> torch.Tensor:
        x = self.first(x, which)
        out: torch.Tensor = self.out(x if skips else self.second(x, (which + 1) % 3))
        return out


Part = tuple[torch.Tensor, int, bool]
Routing = dict[str, "Callable[[int, int, int], tuple[int, bool]]"]

ROUTING: Routing = {
    "the same on all ranks": lambda step, micro, rank: ((step + micro) % 3, step == 1),
    "another on each rank": lambda step, micro, rank: ((step + micro + rank) % 3, step == 1),
}
"""From step, microbatch and rank to the expert, and whether the second unit is skipped."""


def _parts(routing: str, step: int, count: int) -> list[Part]:
    rank = dist.get_rank()
    generator = torch.Generator().manual_seed(100 * step + rank)
    return [
        (torch.randn(2, 3, generator=generator), *ROUTING[routing](step, micro, rank))
        for micro in range(count)
    ]


def _under_fsdp1(model: Any, parts: list[Part]) -> Iterator[Part]:
    for number, part in enumerate(parts):
        with ExitStack() as stack:
            if number + 1 < len(parts):
                stack.enter_context(model.no_sync())
            yield part


def _under_no_sync(model: nn.Module, parts: list[Part]) -> Iterator[Part]:
    for number, part in enumerate(parts):
        with ExitStack() as stack:
            if number + 1 < len(parts):
                stack.enter_context(no_sync(model))
            yield part


LOOPS: dict[str, Callable[[Any, list[Part]], Any]] = {
    "microbatches": lambda model, parts: microbatches(model, parts, comms="last"),
    "agreeing": lambda model, parts: microbatches(model, parts, comms="last", agree=True),
    "no_sync": _under_no_sync,
}


def _train(model: nn.Module, routing: str, count: int, loop: Callable[[Any, list[Part]], Any]) -> Run:
    """Train by SGD with momentum and weight decay, which tell a gradient of zeros from none."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.5, weight_decay=0.125)
    losses: list[float] = []
    gradients: dict[str, torch.Tensor] = {}
    for step in range(3):
        optimizer.zero_grad()
        for part in loop(model, _parts(routing, step, count)):
            loss = model(*part).float().square().mean()
            torch.autograd.backward(loss)
            losses.append(loss.item())
        if isinstance(model, FSDP):
            with FSDP.summon_full_params(model, with_grads=True):
                gradients |= {
                    f"{step} {_clean(name)}": param.grad.clone()
                    for name, param in model.named_parameters()
                    if param.grad is not None
                }
        else:
            gradients |= {
                f"{step} {name}": full(param.grad)
                for name, param in model.named_parameters()
                if param.grad is not None
            }
        optimizer.step()
    if isinstance(model, FSDP):
        with FSDP.summon_full_params(model):
            return Run(
                losses, gradients, {_clean(n): p.detach().clone() for n, p in model.named_parameters()}
            )
    return Run(losses, gradients, {name: full(param) for name, param in model.named_parameters()})


def run_both(cases: list[tuple[str, str, int]], reduce: torch.dtype | None = None) -> list[tuple[Run, Run]]:
    """Train each case (routing, loop, number of microbatches) under FSDP1 and under FSDP2."""
    warnings.simplefilter("ignore")
    arguments: dict[str, Any] = {
        "auto_wrap_policy": ModuleWrapPolicy({Experts}),
        "use_orig_params": True,
        "device_id": torch.device("cpu"),
    }
    if reduce is not None:
        arguments["mixed_precision"] = MixedPrecision(torch.bfloat16, reduce)
    runs = []
    for routing, loop, count in cases:
        torch.manual_seed(0)
        reference = _train(FSDP(Mixture(), **arguments), routing, count, _under_fsdp1)
        torch.manual_seed(0)
        model = prepare_fully_shard(Mixture(), arguments)
        runs.append((reference, _train(model, routing, count, LOOPS[loop])))
    return runs


def _clean(name: str) -> str:
    return name.replace("_fsdp_wrapped_module.", "")
