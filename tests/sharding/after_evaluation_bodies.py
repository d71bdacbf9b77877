"""Prepared models after forwards that no backward follows: what they show, and what is written to them."""

from __future__ import annotations

import copy
import warnings
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor

from fsdp_migrate.runtime import register_forward_methods
from fsdp_migrate.sharding.prepare import prepare_fully_shard


if TYPE_CHECKING:
    from collections.abc import Iterator


WIDTH = 4


class Block(nn.Module):
    """A unit."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.linear(x))


class Net(nn.Module):
    """Two units, and parameters of the root's own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.gives_bias = False

    def forward(self, x: torch.Tensor) -> Any:
        found = self.blocks(self.first(x))
        return (found, {"bias": self.first.bias}) if self.gives_bias else found

    def encode(self, x: torch.Tensor) -> Any:
        return self.first(x)


def _arguments(strategy: str) -> dict[str, Any]:
    return {
        "auto_wrap_policy": ModuleWrapPolicy({Block}),
        "sharding_strategy": ShardingStrategy[strategy],
        "use_orig_params": True,
        "device_id": torch.device("cpu"),
    }


def _prepare(net: nn.Module, strategy: str) -> Any:
    return prepare_fully_shard(net, _arguments(strategy))


def _batches(steps: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the batch of both ranks, and this rank's half of it."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        every = torch.randn(2 * 3, WIDTH, generator=generator)
        yield every, every.chunk(2)[dist.get_rank()]


def _kinds(model: nn.Module) -> set[str]:
    return {"shards" if isinstance(param, DTensor) else "whole" for param in model.parameters()}


def shown(strategy: str) -> dict[str, set[str]]:
    """Return what a model's parameters are after forwards of several kinds."""
    model, x, found = _prepare(Net(), strategy), torch.ones(2, WIDTH), {}
    register_forward_methods(model, "encode")
    forwards = {"the model": model, "a unit": model.blocks[0], "a method": model.encode}
    for mode in (torch.no_grad, torch.inference_mode):
        for name, forward in forwards.items():
            with mode():
                forward(x)
            found[f"{name}, {mode.__name__}"] = _kinds(model)
    with torch.no_grad():
        for unit in model.modules():
            if isinstance(unit, FSDPModule):
                unit.unshard()
        model(x)
        # Of the root: under FULL_SHARD other units free theirs, as torch does.
        found["unsharded by the script"] = _kinds(model.first)
        model.reshard()
        for unit in model.modules():
            if isinstance(unit, FSDPModule):
                unit.reshard()
        found["and sharded again"] = _kinds(model)
    frozen = _prepare(Net().requires_grad_(requires_grad=False), strategy)
    frozen(x)
    found["nothing is trained"] = _kinds(frozen)
    frozen(x.clone().requires_grad_()).sum().backward()
    return found


def shown_by_fsdp1(strategy: str) -> bool:
    """Tell whether FSDP1's parameters are one rank's part after an evaluation."""
    net = Net()
    sizes = [param.numel() for param in net.parameters()]
    model = FSDP(net, **_arguments(strategy))
    with torch.no_grad():
        model(torch.ones(2, WIDTH))
    return any(param.numel() < size for param, size in zip(model.parameters(), sizes, strict=True))


def _average(teacher: nn.Module, student: nn.Module) -> None:
    with torch.no_grad():
        for theirs, ours in zip(teacher.parameters(), student.parameters(), strict=True):
            theirs.data.mul_(0.5).add_(ours.data, alpha=0.5)


def taught(strategy: str) -> tuple[list[float], list[float]]:
    """Train beside a teacher that is averaged after each step: of one process, and prepared."""

    def train(student: Any, teacher: Any, *, is_sharded: bool) -> list[float]:
        optimizer, losses = torch.optim.SGD(student.parameters(), lr=0.5), []
        for every, own in _batches(4):
            x = own if is_sharded else every
            with torch.no_grad():
                wanted = teacher(x + 1)
            loss = (student(x) - wanted).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            _average(teacher, student)
            mean = loss.detach().clone()
            if is_sharded:
                dist.all_reduce(mean)
                mean /= dist.get_world_size()
            losses.append(mean.item())
        return losses

    torch.manual_seed(0)
    net = Net()
    expected = train(copy.deepcopy(net), copy.deepcopy(net), is_sharded=False)
    teacher = _prepare(copy.deepcopy(net).requires_grad_(requires_grad=False), strategy)
    return expected, train(_prepare(net, strategy), teacher, is_sharded=True)


def copied(strategy: str) -> tuple[dict[str, Any], dict[str, Any], bool]:
    """Copy one model's parameters into another's after both were evaluated; return the states of both."""
    student, teacher, x = _prepare(Net(), strategy), _prepare(Net(), strategy), torch.ones(2, WIDTH)
    with torch.no_grad():
        student(x), teacher(x)
        for theirs, ours in zip(teacher.parameters(), student.parameters(), strict=True):
            theirs.data.copy_(ours.data)
        is_seen = torch.equal(student(x), teacher(x))
    options = StateDictOptions(full_state_dict=True)
    return (
        get_model_state_dict(student, options=options),
        get_model_state_dict(teacher, options=options),
        is_seen,
    )


def evaluated_before_the_step(strategy: str) -> tuple[list[float], list[float]]:
    """Evaluate between the backward and the step: of one process, and prepared; return the evaluations."""
    warnings.simplefilter("ignore")

    def train(model: Any, *, is_sharded: bool) -> list[float]:
        optimizer, found = torch.optim.SGD(model.parameters(), lr=0.5), []
        for every, own in _batches(3):
            model(own if is_sharded else every).square().mean().backward()
            with torch.no_grad():
                found.append(model(every).square().mean().item())
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                found.append(model(every).square().mean().item())
        return found

    torch.manual_seed(0)
    net = Net()
    expected = train(copy.deepcopy(net), is_sharded=False)
    return expected, train(_prepare(net, strategy), is_sharded=True)


def evaluated_before_the_backward(strategy: str) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Evaluate between a forward and its backward: of one process, and prepared; return the gradients."""

    def gradients(model: Any) -> dict[str, torch.Tensor]:
        loss = model(torch.ones(2, WIDTH)).square().mean()
        with torch.no_grad():
            model(torch.zeros(2, WIDTH))
        loss.backward()
        grads = {name: param.grad for name, param in model.named_parameters()}
        return {
            name: grad.full_tensor() if isinstance(grad, DTensor) else grad for name, grad in grads.items()
        }

    torch.manual_seed(0)
    net = Net()
    return gradients(copy.deepcopy(net)), gradients(_prepare(net, strategy))


def given(strategy: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a parameter that a forward without gradients gives, and what it is."""
    net = Net()
    expected = net.first.bias.detach().clone()
    model = _prepare(net, strategy)
    model.gives_bias = True
    with torch.no_grad():
        bias = model(torch.ones(2, WIDTH))[1]["bias"]
        return bias * 1, expected
