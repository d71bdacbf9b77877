"""What ranks run: models whose parameters a script goes through after forwards without a backward."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import ShardingStrategy
from torch.distributed.tensor import DTensor

from fsdp_migrate import prepare_fully_shard
from fsdp_migrate.runtime import full_state_dict


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.inner(x))


class Net(nn.Module):
    """A model whose root has parameters before and behind its units; it can give one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.gives_scale = False

    def forward(self, x: torch.Tensor) -> Any:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return (self.last(x), {"scale": self.last.bias}) if self.gives_scale else self.last(x)


def prepared(net: nn.Module, strategy: str) -> Any:
    warnings.simplefilter("ignore")
    arguments = {"auto_wrap_policy": [Block], "sharding_strategy": ShardingStrategy[strategy]}
    return prepare_fully_shard(net, arguments)


def batch(seed: int) -> torch.Tensor:
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(seed))


def distilled(strategy: str | None, update: str) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Train a student by a teacher that follows it; without a strategy in this process alone."""
    torch.manual_seed(0)
    student: Any = Net()
    teacher: Any = copy.deepcopy(student)
    if strategy is not None:
        student, teacher = prepared(student, strategy), prepared(teacher, strategy)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.3)
    losses = []
    for step in range(4):
        with torch.inference_mode() if update == "inference" else torch.no_grad():
            wanted = teacher(batch(step) + 1).clone()
            if update == "hard":
                student(batch(step))  # an evaluation of both
        _follow(student, teacher, update)
        loss = (student(batch(step)) - wanted).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    if strategy is None:
        return losses, teacher.state_dict()
    return losses, full_state_dict(teacher, rank0_only=False)["model"]


@torch.no_grad()
def _follow(student: nn.Module, teacher: nn.Module, update: str) -> None:
    for own, other in zip(student.parameters(), teacher.parameters(), strict=True):
        if update == "hard":
            other.data.copy_(own.data)
        else:
            other.data.mul_(0.9).add_(own.data, alpha=0.1)


def compare(strategy: str, update: str) -> Any:
    return distilled(strategy, update), distilled(None, update)


def shown(strategy: str) -> dict[str, list[bool]]:
    """Tell which of the root's and a unit's parameters are shards, after forwards of several kinds."""
    model = prepared(Net(), strategy)
    found = {}

    def note(name: str) -> None:
        weights = (model.last.weight, model.blocks[0].inner.weight)
        found[name] = [isinstance(each, DTensor) for each in weights]

    with torch.no_grad():
        model(batch(0))
        note("evaluated")
    model(batch(0))
    note("with gradients")
    with torch.no_grad():
        model(batch(1))
    loss = model(batch(0)).pow(2).mean()
    with torch.no_grad():
        model(batch(1))  # between a forward and its backward
    loss.backward()
    note("trained")
    found["has gradients"] = [each.grad is not None for each in model.parameters()]
    return found


def gradients_around_an_evaluation(strategy: str | None) -> dict[str, torch.Tensor]:
    """Return what a backward gives whose forward was followed by one without gradients."""
    torch.manual_seed(0)
    model: Any = Net()
    model = prepared(model, strategy) if strategy is not None else model
    loss = model(batch(0)).pow(2).mean()
    with torch.no_grad():
        model(batch(1))
    loss.backward()
    grads = {name: param.grad for name, param in model.named_parameters()}
    return {name: each.full_tensor() if isinstance(each, DTensor) else each for name, each in grads.items()}


def around(strategy: str) -> Any:
    return gradients_around_an_evaluation(strategy), gradients_around_an_evaluation(None)


def given() -> tuple[torch.Tensor, torch.Tensor]:
    """Return a parameter that a forward gives without a backward, and what it is."""
    torch.manual_seed(0)
    net = Net()
    expected = net.last.bias.detach().clone()
    model = prepared(net, "FULL_SHARD")
    model.gives_scale = True
    with torch.no_grad():
        _, extra = model(batch(0))
        dist.barrier()
        return extra["scale"] * 1, expected
