"""What Composer's ``OptimizerMonitor`` logs of sharded parameters: whole norms, as under DDP."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from fsdp_migrate.runtime.sharded import gather


if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn


GRADIENT = "l2_norm/grad"
"""The key under which Composer logs the norm of a gradient, and where the names of its other keys begin."""


@torch.no_grad()
def optimizer_metrics(
    model: nn.Module, report: Callable[..., dict[str, Any]] | None = None
) -> dict[str, float]:
    """Return the norm of each gradient and of all, and what the optimizer has to report of each parameter.

    Each number is that of the whole tensor, on every rank: DTensors reduce it over their own mesh, so that
    replicas and plain tensors count once. Composer reduces what its optimizers report over all ranks in
    addition, which fails with DTensors and counts replicas as parts. A collective call of all ranks.

    Args:
        model: The model, after backward.
        report: The optimizer's ``report_per_parameter_metrics``, which takes a parameter, its name and the
            metrics so far; None: norms of gradients only.
    """
    found: dict[str, float] = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is None or not parameter.requires_grad:
            continue
        metrics = {} if report is None else dict(report(parameter, name, {}))
        if f"{GRADIENT}/{name}" not in metrics:
            metrics[f"{GRADIENT}/{name}"] = torch.linalg.vector_norm(parameter.grad)
        found.update({key: _number(value) for key, value in metrics.items()})
    squares = [value**2 for key, value in found.items() if key.startswith(GRADIENT)]
    return {**found, f"{GRADIENT}/global": math.sqrt(sum(squares))}


def _number(value: Any) -> float:
    return float(gather(value)) if isinstance(value, torch.Tensor) else float(value)
