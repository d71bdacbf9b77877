"""Optimizers that step in backward, under FSDP1 and prepared; hooks of parameters."""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from fsdp_migrate.errors import FSDPMigrateError
from fsdp_migrate.runtime import no_sync
from fsdp_migrate.sharding.prepare import prepare_fully_shard, shard_plan
from tests.models import Block, Net, batch, loss_of


if TYPE_CHECKING:
    from collections.abc import Callable


OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "SGD": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "AdamW": (torch.optim.AdamW, {"lr": 0.05}),
}


def _arguments(precision: str) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "auto_wrap_policy": ModuleWrapPolicy({Block}),
        "use_orig_params": True,
        "device_id": torch.device("cpu"),
    }
    if precision == "bf16":
        arguments["mixed_precision"] = MixedPrecision(torch.bfloat16, torch.float32)
    return arguments


def _losses(model: Any, *, accumulates: bool = False, prepared: bool = False) -> list[float]:
    losses = []
    for step in range(4):
        rank = dist.get_rank()
        if accumulates:
            with no_sync(model) if prepared else model.no_sync():
                torch.autograd.backward(loss_of(model, batch(step + 10, rank)))
        loss = loss_of(model, batch(step, rank))
        torch.autograd.backward(loss)
        losses.append(loss.item())
    return losses


def apply_in_backward(kind: str, precision: str) -> dict[str, tuple[list[float], list[float]]]:
    """Train by torch's ``_apply_optimizer_in_backward`` under FSDP1 and prepared, in every way."""
    warnings.simplefilter("ignore")
    apply = importlib.import_module("torch.distributed.optim")._apply_optimizer_in_backward  # warns
    found = {}
    for way in ("with its hook", "without its hook", "accumulated"):
        pair = []
        for prepared in (False, True):
            torch.manual_seed(0)
            model: Any = Net()
            optimizer, options = OPTIMIZERS[kind]
            hooked = way != "without its hook"
            apply(optimizer, model.parameters(), options, register_hook=hooked)
            arguments = _arguments(precision)
            model = prepare_fully_shard(model, arguments) if prepared else FSDP(model, **arguments)
            pair.append(_losses(model, accumulates=way == "accumulated", prepared=prepared))
        found[way] = (pair[0], pair[1])
    return found


class Stepper:
    """A hook that is an object."""

    def __init__(self, optimizers: dict[Any, torch.optim.Optimizer]) -> None:
        self.optimizers = optimizers

    def __call__(self, parameter: nn.Parameter) -> None:
        self.optimizers[parameter].step()
        self.optimizers[parameter].zero_grad()


def _closing_over(optimizers: dict[Any, torch.optim.Optimizer], name: str) -> Callable[[Any], None]:
    del name

    def hook(parameter: nn.Parameter) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    return hook


def _by_name(optimizers: dict[Any, torch.optim.Optimizer], name: str) -> Callable[[Any], None]:
    (optimizer,) = (each for each in optimizers.values() if each.param_groups[0]["name"] == name)

    def hook(parameter: nn.Parameter) -> None:
        del parameter
        optimizer.step()
        optimizer.zero_grad()

    return hook


HOOKS: dict[str, Callable[[dict[Any, torch.optim.Optimizer], str], Callable[[Any], None]]] = {
    "closing over a dict by parameter": _closing_over,
    "closing over its optimizer": _by_name,
    "an object": lambda optimizers, name: Stepper(optimizers),
}


def step_in_hooks(kind: str) -> dict[str, tuple[list[float], list[float], list[str]]]:
    """Train with optimizers that step in hooks, and the same by FSDP1 after each backward.

    FSDP1 itself calls no hooks that parameters had before. Returns the losses, and the findings.
    """
    warnings.simplefilter("ignore")
    optimizer, options = OPTIMIZERS[kind]
    torch.manual_seed(0)
    model: Any = FSDP(Net(), **_arguments("fp32"))
    after = optimizer(model.parameters(), **options)
    expected = []
    for step in range(4):
        loss = loss_of(model, batch(step, dist.get_rank()))
        torch.autograd.backward(loss)
        after.step()
        after.zero_grad()
        expected.append(loss.item())
    found = {}
    for way, make in HOOKS.items():
        torch.manual_seed(0)
        net = Net()
        named = list(net.named_parameters())
        optimizers: dict[Any, Any] = {
            param: optimizer([{"params": [param], "name": name}], **options) for name, param in named
        }
        for name, param in named:
            param.register_post_accumulate_grad_hook(make(optimizers, name))
        prepare_fully_shard(net, _arguments("fp32"))
        codes = [finding.code for finding in shard_plan(net).findings if finding.code == "FM111"]
        found[way] = (expected, _losses(net), codes)
    return found


def _count(grad: torch.Tensor) -> None:
    raise AssertionError("is not called")


def hook_of_a_gradient(kind: str) -> tuple[str, str]:
    """Prepare a model of which a parameter has a hook; return the error."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weight = model.head.out.weight
    weight.register_hook(_count if kind == "ignored" else lambda _: optimizer.step())
    more = {"ignored_modules": [model.head]} if kind == "ignored" else {}
    try:
        prepare_fully_shard(model, {**_arguments("fp32"), **more})
    except FSDPMigrateError as error:
        return type(error).__name__, str(error)
    return "no error", ""


def hooks_that_nothing_calls() -> tuple[list[str], list[float], list[float]]:
    """Train a model of which a parameter has a hook that raises where it is called: prepared, under FSDP1."""
    losses: list[list[float]] = []
    codes: list[str] = []
    for prepared in (True, False):
        torch.manual_seed(0)
        model: Any = Net()
        model.head.out.weight.register_hook(_count)
        if prepared:
            prepare_fully_shard(model, _arguments("fp32"))
            codes = [each.code for each in shard_plan(model).findings if each.subject == "register_hook"]
        else:
            model = FSDP(model, **_arguments("fp32"))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses.append([])
        for step in range(2):
            loss = loss_of(model, batch(step, dist.get_rank()))
            torch.autograd.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses[-1].append(loss.item())
    return codes, losses[0], losses[1]
