"""Gradients zeroed between a forward and its backward, under FSDP1 and prepared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.tensor import DTensor

from fsdp_migrate.runtime import no_sync
from tests.models import batch, loss_of
from tests.rank_bodies.runtime import fsdp1, prepared, whole_of


if TYPE_CHECKING:
    from collections.abc import Callable


def _below(model: Any) -> Any:
    return model.module if isinstance(model, FSDP) else model


WAYS: dict[str, Callable[[Any], None]] = {
    "nothing": lambda model: None,
    "the model": lambda model: model.zero_grad(),
    "to zeros": lambda model: model.zero_grad(set_to_none=False),
    "a module around it": lambda model: nn.ModuleDict({"critic": model}).zero_grad(),
    "a module in it": lambda model: _below(model).head.zero_grad(),
    "a unit": lambda model: _below(model).blocks[0].zero_grad(),
}


def train(model: Any, how: str, *, waits: bool = False) -> tuple[list[float], Any]:
    """Train for three steps; return the losses and the parameters.

    ``waits``: each step's first microbatch is not reduced, and is thrown away after the second's forward.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    losses = []
    for step in range(3):
        if waits:
            with model.no_sync() if isinstance(model, FSDP) else no_sync(model):
                torch.autograd.backward(loss_of(model, batch(10 + step, dist.get_rank())))
        loss = loss_of(model, batch(step, dist.get_rank()))
        WAYS[how](model)
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())
        if waits:  # else FSDP1 would keep the last step's shards, beside what waits
            optimizer.zero_grad()
    return losses, whole_of(model)


def zero_between(case: str, how: str, flat: bool, waits: bool) -> tuple[Any, Any]:
    """Zero gradients between forward and backward, under FSDP1 and prepared."""
    kinds = fsdp1(case, use_orig_params=not flat), prepared(case)
    return train(kinds[0], how, waits=waits), train(kinds[1], how, waits=waits)


def gathered_by_hand() -> dict[str, Any]:
    """Zero what stands in the optimizer's gradients while units are whole for the script's own sake."""
    model = prepared()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    torch.autograd.backward(loss_of(model, batch(0, dist.get_rank())))
    held = optimizer.param_groups[0]["params"]
    found: dict[str, Any] = {"reduced": all(param.grad is not None for param in held)}
    model.unshard()
    shown = list(model.parameters(recurse=False)) + list(model.head.parameters())
    found["whole"] = not any(isinstance(param, DTensor) for param in shown)
    nn.Linear(2, 2).zero_grad()
    found["another's"] = all(param.grad is not None for param in held)
    model.head.zero_grad()
    found["of the head"] = {
        name for name, param in zip(_names(model), held, strict=True) if param.grad is None
    }
    return found


def _names(model: nn.Module) -> list[str]:
    return [name for name, _ in model.named_parameters()]
