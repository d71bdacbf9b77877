"""Faults that are put into ours on purpose, where a reason lets FSDP1 differ by any amount."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from tests.fuzz import runs, training
from tests.fuzz.draws import parse


if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from tests.fuzz.models import Net


def _of_one_rank(net: Net) -> None:
    """Let a part of a unit have each rank's own gradients."""
    _gradient(net).mul_(1 + 0.1 * dist.get_rank())


def _one_use_lost(net: Net) -> None:
    """Lose what one of two uses adds to a gradient."""
    _gradient(net).mul_(0.5)


def _where_none_is(net: Net) -> None:
    """Train what nothing flows back to."""
    param = _first(net)
    param.grad = torch.full_like(param, 0.01)


def _rounded_again(net: Net) -> None:
    """Let one gradient be another by as much as bfloat16 rounds."""
    _gradient(net).mul_(1 + 2**-8)


def _run_again(net: Net) -> None:
    """Let a buffer run on, as a forward that is repeated does."""
    layer: Any = net.layers[0]
    layer.mean.mul_(1.3)


def _first(net: Net) -> nn.Parameter:
    layer: Any = net.layers[0]
    weight: nn.Parameter = layer.up.weight
    return weight


def _gradient(net: Net) -> torch.Tensor:
    found = _first(net).grad
    assert found is not None
    return found


@dataclass(frozen=True)
class Fault:
    """A draw that FSDP1 may train otherwise, for a reason, and what is done to ours before each step."""

    draw: str
    reason: str
    put_in: Callable[[Net], None]


FAULTS = {
    "NO_SHARD, recomputed": Fault(
        "route=recomputed, reentrant; strategy=NO_SHARD; policy=none",
        "NO_SHARD: FSDP1 leaves gradients of what is recomputed",
        _of_one_rank,
    ),
    "behind what is frozen": Fault(
        "route=recomputed, reentrant; frozen=embedding", "recomputed, after what is frozen", _where_none_is
    ),
    "recomputed behind what is frozen": Fault(
        "blocks=running + plain; route=recomputed; frozen=all but the last block",
        "recomputed, after what is frozen",
        _run_again,
    ),
    "zeros": Fault(
        "zero=zeros; frozen=frozen later; optimizer=AdamW", "zeros that FSDP1 took", _where_none_is
    ),
    "unused beside what is frozen": Fault(
        "encoder=yes; policy=custom; frozen=embedding; optimizer=AdamW",
        "unused beside what is frozen",
        _one_use_lost,
    ),
    "torn tie": Fault(
        "blocks=plain + plain; tie=across blocks; strategy=NO_SHARD; originals=no", "FM273", _one_use_lost
    ),
    "tie reduced in part": Fault(
        "blocks=plain + plain; tie=across blocks; strategy=NO_SHARD", "FM123", _of_one_rank
    ),
    "offloaded, accumulated": Fault(
        "offload=yes; microbatches=2", "offloaded: FSDP1 keeps the gradients of the last", _of_one_rank
    ),
    "offloaded, zeros": Fault(
        "encoder=yes; policy=custom; offload=yes; zero=zeros", "offloaded, zeros", _where_none_is
    ),
    "gradients kept in bfloat16": Fault(
        "strategy=NO_SHARD; precision=bf16 grads kept", "FM012", _rounded_again
    ),
}


def _puts_in(fault: Fault) -> Callable[[training.Prepared], None]:
    return lambda self: fault.put_in(self.net)


def run_each() -> dict[str, tuple[runs.Report, runs.Report]]:
    """Train each draw as it is, and with its fault; return what this rank reports."""
    warnings.simplefilter("ignore")
    found = {}
    for name, fault in FAULTS.items():
        drawn = parse(fault.draw)
        plain = runs.run_both(drawn, lambda _: None)
        training.Prepared.end_backwards = _puts_in(fault)  # type: ignore[method-assign, assignment]
        try:
            found[name] = plain, runs.run_both(drawn, lambda _: None)
        finally:
            del training.Prepared.end_backwards
    return found
