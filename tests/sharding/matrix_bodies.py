"""FSDP1 against ours: every combination of strategy, precision, units, accumulation, ties; and clipped."""

from __future__ import annotations

import itertools
import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel as FSDP,
    MixedPrecision,
    ShardingStrategy,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy, size_based_auto_wrap_policy

from fsdp_migrate.runtime import no_sync
from fsdp_migrate.runtime.clipping import clip_grad_norm_
from fsdp_migrate.sharding.prepare import prepare_fully_shard
from tests.models import Block, Net, batch, loss_of
from tests.rank_bodies.parity import full


PRECISIONS: dict[str, MixedPrecision | None] = {
    "fp32": None,
    "bf16": MixedPrecision(torch.bfloat16),
    "bf16, fp32 reduce": MixedPrecision(torch.bfloat16, torch.float32),
}
POLICIES: dict[str, Any] = {
    "blocks": ModuleWrapPolicy({Block}),
    "size": partial(size_based_auto_wrap_policy, min_num_params=60),
}
ACCUMULATIONS = ("one microbatch", "two, each reduced", "two under no_sync")
STEPS = 2
"""Without clipping, which is on in one more step: clipped norms are added in another order."""


@dataclass(frozen=True)
class Combination:
    """One cell of the matrix."""

    strategy: str
    precision: str
    policy: str
    accumulation: str
    tied: bool

    @property
    def breaks_fsdp1(self) -> bool:
        """Whether FSDP1 itself raises: it puts the bfloat16 gradient that it holds on a float32 parameter."""
        accumulates = self.accumulation != "one microbatch"
        return self.strategy == "NO_SHARD" and self.precision != "fp32" and accumulates

    @property
    def adds_otherwise(self) -> bool:
        """Whether FSDP2 adds gradients up in another precision than FSDP1."""
        return self.accumulation == "two under no_sync" and self.precision == "bf16, fp32 reduce"

    @property
    def adds_in_another_order(self) -> bool:
        """Whether the same sums are made in another order.

        FSDP1's NO_SHARD all-reduces the gradients that it has with the new ones.
        """
        return self.strategy == "NO_SHARD" and self.accumulation == "two, each reduced"


def combinations(strategy: str) -> list[Combination]:
    """Return the cells of a strategy; ties only with units that do not tear them, as FSDP1 needs it."""
    cells = itertools.product(PRECISIONS, POLICIES, ACCUMULATIONS, (False, True))
    every = [Combination(strategy, *cell) for cell in cells if not (cell[3] and cell[1] == "size")]
    # At 4 ranks the cells take as long as all the others: units by size in one precision.
    rare = {"size"} if "HYBRID" in strategy else set()
    left = [cell for cell in every if not (cell.policy in rare and cell.precision != "fp32")]
    return [cell for cell in left if not cell.breaks_fsdp1]


def _arguments(cell: Combination) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "sharding_strategy": ShardingStrategy[cell.strategy],
        "mixed_precision": PRECISIONS[cell.precision],
        "auto_wrap_policy": POLICIES[cell.policy],
        "device_id": torch.device("cpu"),
    }
    if "HYBRID" in cell.strategy:
        arguments["device_mesh"] = _mesh()
    return arguments


@cache
def _mesh() -> DeviceMesh:
    """Make the groups once: for each of a hundred models that takes longer than its training."""
    return init_device_mesh("cpu", (2, dist.get_world_size() // 2))


class _Run:
    """A model of FSDP1, or one of ours, that is trained step by step."""

    def __init__(self, cell: Combination, *, is_prepared: bool) -> None:
        torch.manual_seed(0)
        net = Net(tied=cell.tied)
        self.model: Any = (
            prepare_fully_shard(net, _arguments(cell))
            if is_prepared
            else FSDP(net, use_orig_params=True, **_arguments(cell))
        )
        self.cell = cell
        self.is_prepared = is_prepared
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.3)

    def step(self, number: int, *, is_clipped: bool) -> list[float]:
        """Make one step, and return its losses and what clipping gave."""
        model, is_prepared = self.model, self.is_prepared
        parts = 1 if self.cell.accumulation == "one microbatch" else 2
        losses: list[float] = []
        self.optimizer.zero_grad()
        for part in range(parts):
            quiet: Any = nullcontext()
            if self.cell.accumulation == "two under no_sync" and part == 0:
                quiet = no_sync(model) if is_prepared else model.no_sync()
            with quiet:
                loss = loss_of(model, batch(2 * number + part, dist.get_rank())) / parts
                torch.autograd.backward(loss)
            losses.append(loss.item())
        if is_clipped:
            norm = clip_grad_norm_(model, 0.2) if is_prepared else model.clip_grad_norm_(0.2)
            losses.append(float(norm))
        self.optimizer.step()
        return losses

    def parameters(self) -> list[torch.Tensor]:
        """Return them whole, each with a memory of its own."""
        if self.is_prepared:
            return [full(param).clone() for param in self.model.parameters()]
        with FSDP.summon_full_params(self.model):
            return [param.detach().clone() for param in self.model.parameters()]


@dataclass(frozen=True)
class Difference:
    """How far a cell's runs are apart: the losses and norms, and the parameters; 0 is bit for bit."""

    cell: Combination
    is_clipped: bool
    losses: float
    parameters: float


def run_cells(strategy: str) -> list[Difference]:
    """Train every cell of a strategy under both; return how far apart they are, before a clip and after."""
    warnings.simplefilter("ignore")
    found = []
    for cell in combinations(strategy):
        theirs, ours = _Run(cell, is_prepared=False), _Run(cell, is_prepared=True)
        for steps, is_clipped in ((range(STEPS), False), (range(STEPS, STEPS + 1), True)):
            expected = [loss for step in steps for loss in theirs.step(step, is_clipped=is_clipped)]
            losses = [loss for step in steps for loss in ours.step(step, is_clipped=is_clipped)]
            apart = (abs(one - other) for one, other in zip(losses, expected, strict=True))
            pairs = zip(ours.parameters(), theirs.parameters(), strict=True)
            moved = max((one - other).abs().max().item() for one, other in pairs)
            found.append(Difference(cell, is_clipped, max(apart), moved))
    return found
