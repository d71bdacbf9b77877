"""The plan's bytes are those of a real sharded model and of its collectives."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn

from fsdp_migrate.sharding.plan import plan_fully_shard
from tests.models import Block, Net
from tests.ranks import run_ranks
from tests.sharding import estimates_bodies as estimates


@pytest.mark.parametrize(
    ("case", "world_size"),
    [("FULL_SHARD", 2), ("SHARD_GRAD_OP", 2), ("bf16", 2), ("NO_SHARD", 2), ("HYBRID_SHARD", 4)],
)
def test_bytes_are_those_that_are_held_and_communicated(case: str, world_size: int) -> None:
    results = run_ranks(estimates.measure, case, world_size=world_size, timeout=400)
    planned, on_rank_0 = results[0]
    # The first rank of each shard group holds the largest pieces, which the plan counts.
    assert {name: planned[name] for name in on_rank_0} == on_rank_0
    assert planned["optimizer_state"] == 2 * planned["gradients"]
    for other_plan, held in results[1:]:
        assert other_plan == planned
        assert held["sharded"] <= planned["sharded"]


def test_the_unsharded_peak_is_the_root_and_two_neighbours() -> None:
    arguments = {"auto_wrap_policy": "Block", "device_id": "cpu"}
    plan = plan_fully_shard(Net(), arguments, world_size=1)
    blocks = [unit.numel * 4 for unit in plan.units[:-1]]
    assert plan.bytes.unsharded_peak == plan.root.numel * 4 + sum(blocks)
    kept = plan_fully_shard(Net(), {**arguments, "sharding_strategy": "SHARD_GRAD_OP"}, world_size=1)
    assert kept.bytes.unsharded_peak == sum(p.numel() for p in Net().parameters()) * 4
    assert kept.bytes.all_gathered_per_step == 0


def test_frozen_parameters_have_no_gradients() -> None:
    net = Net()
    net.embed.requires_grad_(False)
    arguments = {"auto_wrap_policy": "Block", "device_id": "cpu"}
    frozen, trained = (plan_fully_shard(each, arguments, world_size=2).bytes for each in (net, Net()))
    assert trained.gradients - frozen.gradients == 7 * 6 * 4
    assert trained.sharded == frozen.sharded


class Deep(nn.Module):
    """A thousand blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(4096, 16384) for _ in range(1000))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


@pytest.mark.slow
def test_a_thousand_blocks_are_planned_for_a_thousand_ranks() -> None:
    with torch.device("meta"):
        model = Deep()
    for module in model.modules():
        if isinstance(module, Block):
            module.scale = torch.full((1,), 0.3)
    time.perf_counter()
    plan = plan_fully_shard(model, {"auto_wrap_policy": {Block}, "device_id": "cpu"}, world_size=1024)
    assert len(plan.units) == 1001
    assert plan.bytes.sharded * 1024 == pytest.approx(sum(unit.numel for unit in plan.units) * 4, rel=1e-3)
