"""Rounding of gradients that an optimizer makes more of: told from a step that is another one.

What the numbers of two runs make likely, a third one shows: the script under FSDP1 with gradients that are
rounded otherwise. What is rounding, it has too.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch.distributed.tensor import DTensor

from fsdp_migrate.parity.script_report import MOST_EPSILONS, is_rounding
from fsdp_migrate.parity.tensors import find_gap


if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch.optim import Optimizer

    from fsdp_migrate.parity.report import Difference
    from fsdp_migrate.parity.tensors import Gap
    from fsdp_migrate.parity.trainees import Tensors


# A gradient that two sums in another order make differ by this part of it is 0 but for rounding.
_NOISE_EPSILONS = 1024
# By how many units of its last bit a gradient is rounded otherwise: as sums in another order do.
_OTHERWISE = 8
AS_MUCH = 16.0
"""How many times as much as in FSDP1's own run, with gradients rounded otherwise, is as much."""


def is_enlarged(gradients: tuple[Tensors, Tensors], parameters: tuple[Tensors, Tensors]) -> bool:
    """Tell whether a step differs by more than rounding only where its gradients are rounding.

    Adam divides by the size of a gradient. Where that is 0 but for rounding, as of the bias of an attention's
    keys or one before a BatchNorm, any other rounding is another step. Each number that differs is looked at:
    moments that were lost change those with a gradient of their own too.

    Args:
        gradients: Those of a step under FSDP1, and under FSDP2, whole and by names.
        parameters: The same, after the step.

    Example:
        >>> one, other = torch.tensor([1.0, 1e-9]), torch.tensor([1.0, 3e-9])
        >>> is_enlarged(({"w": one}, {"w": other}), ({"w": one}, {"w": one + torch.tensor([0.0, 0.1])}))
        True
        >>> is_enlarged(({"w": one}, {"w": other}), ({"w": one}, {"w": one + torch.tensor([0.1, 0.0])}))
        False
    """
    if any(one.keys() != other.keys() for one, other in (gradients, parameters)):
        return False
    sizes = [float(each.abs().max()) for each in gradients[0].values() if each.numel()]
    found = False
    for name, gradient in gradients[0].items():
        gap = find_gap(gradient, gradients[1][name])
        if gap is None or is_rounding(gap):
            continue
        # Seen beside the largest of all: by itself it is another one, also where SGD makes nothing of it.
        if not _is_finite(gap, gradient) or (gap.largest or 0.0) > _most(gradient) * max(sizes):
            return False
        found = True
    for name, before in parameters[0].items():
        after = parameters[1][name]
        gap = find_gap(before, after)
        if gap is None or is_rounding(gap):
            continue
        if not _is_finite(gap, before) or name not in gradients[0]:
            return False
        differs = (before - after).abs() > _most(before) * before.abs().max()
        one, other = gradients[0][name][differs], gradients[1][name][differs]
        noise = _NOISE_EPSILONS * torch.finfo(one.dtype).eps * one.abs()
        if not bool(((one - other).abs() > noise).all()):
            return False
        found = True
    return found


def _is_finite(gap: Gap, tensor: torch.Tensor) -> bool:
    """Tell whether floats differ, and by how much; FSDP1's may all be 0, of which nothing is a part."""
    return tensor.is_floating_point() and gap.largest is not None and math.isfinite(gap.largest)


def _most(tensor: torch.Tensor) -> float:
    """Return by what part of the largest number rounding makes numbers of a type differ at most."""
    return MOST_EPSILONS * torch.finfo(tensor.dtype).eps


def round_otherwise(optimizer: Optimizer, step: int) -> None:
    """Change each gradient by a few units of its last bit: ranks that hold the same change it alike.

    Example:
        >>> param = torch.nn.Parameter(torch.ones(4))
        >>> param.grad = torch.ones(4)
        >>> round_otherwise(torch.optim.SGD([param]), 1)
        >>> bool((param.grad - 1).abs().max() < 1e-6), bool((param.grad == 1).all())
        (True, False)
    """
    params = [param for group in optimizer.param_groups for param in group["params"]]
    for place, param in enumerate(params):
        grad = param.grad.to_local() if isinstance(param.grad, DTensor) else param.grad
        if grad is None or grad.layout != torch.strided or not grad.is_floating_point():
            continue
        # Of its own: the script's random numbers stay what they are.
        random = torch.Generator(grad.device).manual_seed(step * len(params) + place)
        by = torch.empty_like(grad, requires_grad=False).random_(2 * _OTHERWISE + 1, generator=random)
        with torch.no_grad():
            grad.mul_(1 + (by - _OTHERWISE) * torch.finfo(grad.dtype).eps)


def not_shown(found: Iterable[Difference], own: Iterable[Difference]) -> list[Difference]:
    """Return which differences of two runs FSDP1's own run does not show with gradients rounded otherwise.

    What is rounding in itself is shown. A gradient that is small, and another one, is not: FSDP1's own run
    has the same there, but for rounding.

    Args:
        found: The differences of the two runs.
        own: Those of FSDP1's run and FSDP1's run with gradients that are rounded otherwise.
    """
    most: dict[tuple[str, str], float] = {}
    for each in own:
        key = each.stage, each.name
        most[key] = max(most.get(key, 0.0), each.gap.largest or 0.0)
    return [
        each
        for each in found
        if not is_rounding(each.gap)
        # Neither is what is no number, nor NaN.
        and not (each.gap.largest or math.inf) <= AS_MUCH * most.get((each.stage, each.name), 0.0)
    ]
