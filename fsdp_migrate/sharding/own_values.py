"""Whether all ranks bring the same values: each shards its own, and FSDP2 cuts them otherwise than FSDP1."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

import torch
from torch.nn.parameter import is_lazy

from fsdp_migrate.findings import listed, make_finding


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import nn

    from fsdp_migrate.findings import Finding
    from fsdp_migrate.sharding.plan import ShardPlan


_SAMPLED: Final = 8
"""How many numbers of a parameter are looked at: what a seed draws differs in all of them."""
_MOST_NAMED: Final = 3
_LEAST_BYTES: Final = 2


def sampled_values(plan: ShardPlan, model: nn.Module) -> tuple[tuple[str, str], ...]:
    """Return the sharded parameters by name with a short text for their values, of eight numbers of each.

    Empty where ranks have values of their own for a reason: parameters on the meta device, tensor and expert
    parallelism, ``sync_module_states``. Reads only; nothing is communicated.
    """
    if plan.config.broadcast_from_rank0 or plan.parallel:
        return ()
    found = list(_samples(plan, model))
    if any(values.is_meta for _, values in found):
        return ()
    # One copy to the CPU, not one for each parameter.
    every = torch.cat([values.to(torch.float32) for _, values in found]).cpu() if found else torch.empty(0)
    parts = every.split([values.numel() for _, values in found]) if found else ()
    return tuple((name, _digest(part)) for (name, _), part in zip(found, parts, strict=True))


def _samples(plan: ShardPlan, model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    managed = {name for unit in plan.units for name in unit.parameters}
    device = None
    for name, parameter in model.named_parameters():
        if name not in managed or is_lazy(parameter):
            continue
        values = parameter.detach()
        is_plain = type(values) is torch.Tensor and values.is_floating_point()
        if not is_plain or values.element_size() < _LEAST_BYTES:
            continue
        device = values.device if device is None else device
        if values.is_meta:
            yield name, values
            return
        if values.numel() and values.ndim and values.device == device:
            # On the diagonal, so that a parameter is not copied whole, however it is laid out.
            places = [torch.linspace(0, size - 1, _SAMPLED).long() for size in values.shape]
            yield name, values[tuple(places)]


def _digest(values: torch.Tensor) -> str:
    return hashlib.sha256(values.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()[:16]


def digest_of(values: Sequence[tuple[str, str]]) -> str:
    """Return a short text that differs where values do; empty where there are none."""
    return hashlib.sha256(repr(values).encode()).hexdigest()[:16] if values else ""


def values_finding(ranks: Sequence[Sequence[tuple[str, str]]]) -> Finding:
    """Return FM132, which names parameters of which not all ranks have the same values.

    Args:
        ranks: What :func:`sampled_values` returned on each.
    """
    named = [dict(each) for each in ranks]
    names = list(dict.fromkeys(name for each in named for name in each))
    found = [f"`{name}`" for name in names if len({each.get(name) for each in named}) > 1]
    text = (
        f"The ranks have different values in {listed(found, _MOST_NAMED)}, and nothing sends them those of "
        "one. Each parameter is put together of every rank's own, at other places than FSDP1 did it: the run "
        "begins with other weights, unless a checkpoint is loaded first."
    )
    hint = (
        "Where a checkpoint is loaded before the first step, do nothing. Else pass "
        "`sync_module_states=True`, or make the model below one seed for all ranks."
    )
    return make_finding("FM132", "sync_module_states", text, hint)
