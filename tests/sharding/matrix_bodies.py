"""FSDP1 against ours: every combination of strategy, precision, units, accumulation, ties and clipping."""

from __future__ import annotations

import itertools
import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
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


@dataclass(frozen=True)
class Combination:
    """One cell of the matrix."""

    strategy: str
    precision: str
    policy: str
    accumulation: str
    tied: bool
    clipped: bool

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

        Clipped norms are; and FSDP1's NO_SHARD all-reduces the gradients that it has with the new ones.
        """
        each = self.strategy == "NO_SHARD" and self.accumulation == "two, each reduced"
        return self.clipped or each


def combinations(strategy: str) -> list[Combination]:
    """Return the cells of a strategy; ties only with units that do not tear them, as FSDP1 needs it."""
    cells = itertools.product(PRECISIONS, POLICIES, ACCUMULATIONS, (False, True), (False, True))
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


def _train(model: Any, cell: Combination, *, prepared: bool) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    parts = 1 if cell.accumulation == "one microbatch" else 2
    losses: list[float] = []
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(parts):
            quiet: Any = nullcontext()
            if cell.accumulation == "two under no_sync" and part == 0:
                quiet = no_sync(model) if prepared else model.no_sync()
            with quiet:
                loss = loss_of(model, batch(2 * step + part, dist.get_rank())) / parts
                torch.autograd.backward(loss)
            losses.append(loss.item())
        if cell.clipped:
            norm = clip_grad_norm_(model, 0.2) if prepared else model.clip_grad_norm_(0.2)
            losses.append(float(norm))
        optimizer.step()
    return losses


@dataclass(frozen=True)
class Difference:
    """How far a cell's runs are apart: the losses and norms, and the parameters; 0 is bit for bit."""

    cell: Combination
    losses: float
    parameters: float


def run_cells(strategy: str) -> list[Difference]:
    """Train every cell of a strategy under both, and return how far apart they are."""
    warnings.simplefilter("ignore")
    found = []
    for cell in combinations(strategy):
        torch.manual_seed(0)
        model: nn.Module = FSDP(Net(tied=cell.tied), use_orig_params=True, **_arguments(cell))
        reference = _train(model, cell, prepared=False)
        with FSDP.summon_full_params(model):
            expected = [param.detach().clone() for param in model.parameters()]
        torch.manual_seed(0)
        ours = prepare_fully_shard(Net(tied=cell.tied), _arguments(cell))
        losses = _train(ours, cell, prepared=True)
        parameters = [full(param) for param in ours.parameters()]
        found.append(
            Difference(
                cell,
                max(abs(one - other) for one, other in zip(losses, reference, strict=True)),
                max(
                    (one - other).abs().max().item() for one, other in zip(parameters, expected, strict=True)
                ),
            )
        )
    return found
