"""What ranks run for :mod:`tests.sharding.test_mixed_groups`: optimizers that are made after sharding."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from fsdp_migrate.errors import OptimizerError
from fsdp_migrate.runtime import grad_scaler
from fsdp_migrate.sharding.prepare import prepare_fully_shard
from tests.models import Net, batch, loss_of
from tests.rank_bodies.parity import Tensors, full


CPU = {"device_id": "cpu", "auto_wrap_policy": "Block"}
Options = dict[str, Any]


class Guide(nn.Module):
    """A plain module that holds one that is sharded, and a plain one of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.core = Net()
        self.judge = nn.Linear(1, 3)

    def forward(self, step: int) -> torch.Tensor:
        judged: torch.Tensor = self.judge(loss_of(self.core, batch(step, 0)).reshape(1, 1))
        return judged.square().sum()


def _shard(guide: Guide, way: str) -> nn.Module:
    """Shard a part of a model; return the module whose parameters are of both kinds."""
    if way == "part":
        prepare_fully_shard(guide.core, CPU)
        return guide
    prepare_fully_shard(guide.core, {**CPU, "ignored_modules": ["head"]})
    return guide.core


def train(way: str, kind: str, options: Options) -> tuple[Tensors, Tensors, list[Options]]:
    """Train beside an unsharded model, with the same data on all ranks; return both, and the groups."""
    results: list[Tensors] = []
    groups: list[Options] = []
    for prepared in (False, True):
        torch.manual_seed(0)
        guide = Guide()
        held = _shard(guide, way) if prepared else guide.core if way == "ignored" else guide
        optimizer: torch.optim.Optimizer = getattr(torch.optim, kind)(held.parameters(), lr=0.05, **options)
        for step in range(3):
            optimizer.zero_grad()
            torch.autograd.backward(guide(step))
            optimizer.step()
            groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
            # A state that is loaded brings the options of the one that was saved.
            state = optimizer.state_dict()
            saved = [{**group, **options} for group in state["param_groups"]]
            optimizer.load_state_dict({**state, "param_groups": saved})
        results.append({name: full(param) for name, param in held.named_parameters()})
    return results[0], results[1], groups


def step_what_mixes_not() -> dict[str, bool | None]:
    """Step optimizers whose plain parameters go to no kernel with sharded ones; return their ``foreach``."""
    found: dict[str, bool | None] = {}
    for name in ("frozen", "another dtype", "a group of its own", "plain alone"):
        guide = Guide()
        prepare_fully_shard(guide.core, CPU)
        if name == "frozen":
            guide.judge.requires_grad_(False)
        if name == "another dtype":
            guide.judge.to(torch.float64)
        params: Any = guide.parameters()
        if name == "a group of its own":
            params = [{"params": guide.core.parameters()}, {"params": guide.judge.parameters()}]
        optimizer = torch.optim.AdamW(
            guide.judge.parameters() if name == "plain alone" else params, foreach=True
        )
        for param in guide.parameters():
            assert isinstance(param, DTensor) is (param not in set(guide.judge.parameters()))
            param.grad = torch.ones_like(param) if param.requires_grad else None
        optimizer.step()
        found[name] = all(group["foreach"] for group in optimizer.param_groups)
    return found


def fused_under_a_scaler() -> str:
    """Let a scaler leave unscaling to a fused optimizer of both kinds; return the error."""
    guide = Guide()
    prepare_fully_shard(guide.core, CPU)
    optimizer = torch.optim.AdamW(guide.parameters(), fused=True)
    scaler = grad_scaler("cpu")
    torch.autograd.backward(scaler.scale(guide(0)))
    try:
        scaler.step(optimizer)
    except OptimizerError as error:
        return str(error)
    return "no error"
