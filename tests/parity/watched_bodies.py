"""Trains a model whose steps are watched, as ``fsdp-migrate compare`` has a script watched."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from fsdp_migrate import prepare_fully_shard
from fsdp_migrate.parity import watching
from tests.models import Block, Net, batch, loss_of


CPU = torch.device("cpu")


def train(how: str, fault: str, kept: str, found: str | None, steps: int = 2) -> None:
    """Train two steps under FSDP1 (``flat``, ``originals`` or ``children``) or ``prepared``."""
    given = {watching.KEPT: kept} if found is None else {watching.WITH: kept, watching.FOUND: found}
    os.environ.update({**given, watching.STEPS: str(steps)})
    register_optimizer_step_pre_hook(watching.before_step)
    register_optimizer_step_post_hook(lambda optimizer, args, kwargs: watching.after_step(optimizer))
    torch.manual_seed(0)
    net = Net()
    if "plain first" in fault:
        _train_plain(net)
    model = _sharded(net, how, fault)
    optimizer = _optimizer(model, fault)
    projector, temperature = _besides(optimizer, how, fault)
    if "state made" in fault:
        _make_state(optimizer)
    if "frozen" in fault:
        _freeze(model)
    for step in range(3 if fault == "a step more" else 2):

        def backward(step: int = step) -> torch.Tensor:
            loss = loss_of(model, batch(step, dist.get_rank()))
            if projector is not None:
                loss = loss + projector(torch.full((2, 4), dist.get_rank() + 1.0)).square().mean()
            (loss * (2 if fault == "loss" and step == 1 else 1)).backward()
            return loss

        if fault == "closure":
            optimizer.step(lambda: float(backward()))
        else:
            backward()
            if temperature is not None:
                temperature.grad = torch.full_like(temperature, step + 1.0)
            if fault == "buffer" and step == 1:
                model.get_buffer("offset").add_(1)
            _take_away(model if fault == "taken away" else nn.Module())
            optimizer.step()
        optimizer.zero_grad()


def _freeze(model: nn.Module) -> None:
    """Freeze so much that one rank has no gradient at all."""
    for name, param in model.named_parameters():
        param.requires_grad_("head.out" in name)


def _take_away(model: nn.Module) -> None:
    """Take gradients of trained parameters, as where another optimizer of the same model has them."""
    for name, param in model.named_parameters():
        if "head.out" in name or name.endswith("up.bias"):
            param.grad = None


def _besides(
    optimizer: torch.optim.Optimizer, how: str, fault: str
) -> tuple[nn.Module | None, torch.Tensor | None]:
    """Give the optimizer a second model, or a parameter of no model."""
    projector = temperature = None
    if "two models" in fault:
        projector = _alone(nn.Linear(4, 3), how)
        optimizer.add_param_group({"params": list(projector.parameters()), "lr": 0.1})
    if "temperature" in fault:
        temperature = torch.ones(3, requires_grad=True)
        optimizer.add_param_group({"params": [temperature], "lr": 0.2 if "lr" in fault else 0.1})
    return projector, temperature


def _make_state(optimizer: torch.optim.Optimizer) -> None:
    """Step without learning, as torch does where it loads or saves an optimizer."""
    settings = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
        for param in group["params"]:
            param.grad = torch.zeros_like(param) if param.requires_grad and param.numel() else None
    optimizer.step()
    optimizer.zero_grad()
    for group, lr in zip(optimizer.param_groups, settings, strict=True):
        group["lr"] = lr


def _alone(module: nn.Module, how: str) -> nn.Module:
    if how == "prepared":
        return prepare_fully_shard(module, {"use_orig_params": True})
    return FSDP(module, use_orig_params=how == "originals", device_id=CPU)


def _train_plain(net: Net) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(3):
        loss_of(net, batch(step, 0)).backward()
        optimizer.step()
        optimizer.zero_grad()


def _sharded(net: Net, how: str, fault: str) -> nn.Module:
    if fault == "start":
        with torch.no_grad():
            net.head.out.bias.add_(1)
    arguments: dict[str, Any] = {"auto_wrap_policy": ModuleWrapPolicy({Block})}
    if how == "prepared":
        return prepare_fully_shard(net, {**arguments, "use_orig_params": True})
    if how == "prepared children":
        for block in net.blocks:
            prepare_fully_shard(block, {})
        return net
    if how == "other children":
        for block in net.blocks:
            fully_shard(block)
        return net
    if how == "children":
        for place, block in enumerate(net.blocks):
            net.blocks[place] = FSDP(block, use_orig_params=True, device_id=CPU)
        return net
    return FSDP(net, **arguments, use_orig_params=how == "originals", device_id=CPU)


def _optimizer(model: nn.Module, fault: str) -> torch.optim.Optimizer:
    named = list(model.named_parameters())
    if fault == "fewer":
        named = [(name, param) for name, param in named if not name.endswith("out.bias")]
    groups: list[dict[str, Any]] = [{"params": [param for _, param in named]}]
    if fault == "groups":
        groups = [
            {"params": [param for name, param in named if "head" not in name]},
            {"params": [param for name, param in named if "head" in name], "weight_decay": 0.5},
        ]
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9)
