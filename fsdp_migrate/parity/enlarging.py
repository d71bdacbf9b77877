"""Rounding of gradients that an optimizer makes more of: told from a step that is another one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from fsdp_migrate.parity.script_report import MOST_EPSILONS, is_rounding
from fsdp_migrate.parity.tensors import find_gap


if TYPE_CHECKING:
    from fsdp_migrate.parity.tensors import Gap
    from fsdp_migrate.parity.trainees import Tensors


# A gradient that two sums in another order make differ by this part of it is 0 but for rounding.
_NOISE_EPSILONS = 1024


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
