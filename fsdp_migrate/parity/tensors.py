"""Compares two tensors bit for bit: how many numbers differ, where first, and by how many ulps."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch


# How many more ulps than units of the last bit of the largest number are those of numbers near 0 alone.
_NEAR_ZERO = 1024
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, kw_only=True)
class Gap:
    """How two tensors differ.

    ``index`` is that of the first number that differs, ``fsdp1`` and ``fsdp2`` its two values. ``ulps`` is
    the largest distance in representable numbers between them, of all numbers; None where it means nothing,
    as between numbers near 0, at a change of sign above all. ``largest`` is the largest difference, and
    ``epsilons`` the same in units of the last bit of the largest number of FSDP1's.
    ``ratio`` is FSDP2's divided by FSDP1's where it is the same for all numbers. ``words`` says what differs
    that is no value: a shape, a dtype, or that one is missing.
    """

    count: int = 0
    numel: int = 0
    index: tuple[int, ...] = ()
    fsdp1: float | None = None
    fsdp2: float | None = None
    largest: float | None = None
    ulps: int | None = None
    epsilons: float | None = None
    ratio: float | None = None
    words: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the gap as it stands in JSON, where no number is infinite."""
        found = asdict(self)
        return {name: json_number(value) for name, value in found.items()}


def json_number(value: Any) -> Any:
    """Return a number as JSON can hold it: what is not finite as text."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def find_gap(one: torch.Tensor | None, other: torch.Tensor | None) -> Gap | None:
    """Compare FSDP1's tensor with FSDP2's, by bits but for the sign of zero; None: they are the same.

    Example:
        >>> gap = find_gap(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0000002384185791]))
        >>> gap.index, gap.ulps, gap.count
        ((1,), 1, 1)
    """
    if one is None or other is None:
        return Gap(words=f"only under {'FSDP2' if one is None else 'FSDP1'}") if one is not other else None
    if one.shape != other.shape:
        return Gap(words=f"its shape is {list(one.shape)} under FSDP1, {list(other.shape)} under FSDP2")
    if one.dtype != other.dtype:
        return Gap(words=f"it is {_name(one)} under FSDP1, {_name(other)} under FSDP2")
    one, other = one.detach(), other.detach()
    differs = one != other
    if one.is_floating_point():
        differs &= ~(one.isnan() & other.isnan())
    count = int(differs.sum())
    if not count:
        return None
    place = differs.nonzero()[0]
    index = tuple(int(each) for each in place)
    values = [float(tensor[index].real) for tensor in (one, other)]
    epsilons = _epsilons(one, other)
    return Gap(
        count=count,
        numel=one.numel(),
        index=index,
        fsdp1=values[0],
        fsdp2=values[1],
        largest=_largest(one, other),
        ulps=_ulps(one, other, epsilons),
        epsilons=epsilons,
        ratio=_ratio(one, other),
    )


def _name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _largest(one: torch.Tensor, other: torch.Tensor) -> float:
    if one.is_complex():
        return float((one - other).abs().max())
    return float((one.double() - other.double()).abs().max())


def _ulps(one: torch.Tensor, other: torch.Tensor, epsilons: float | None) -> int | None:
    """Return the largest distance, where it is one: most representable numbers are those near 0."""
    if not one.is_floating_point() or not bool((one.isfinite() & other.isfinite()).all()):
        return None
    ulps = int((_steps(one) - _steps(other)).abs().max())
    is_twice = ulps * torch.finfo(one.dtype).eps >= 1
    is_near_zero = epsilons is not None and ulps > _NEAR_ZERO * max(epsilons, 1.0)
    return None if is_twice or is_near_zero else ulps


def _epsilons(one: torch.Tensor, other: torch.Tensor) -> float | None:
    if not one.is_floating_point() or not bool((one.isfinite() & other.isfinite()).all()):
        return None
    scale = float(one.abs().max()) * torch.finfo(one.dtype).eps
    return _largest(one, other) / scale if scale else None


def _steps(tensor: torch.Tensor) -> torch.Tensor:
    """Number the representable values: neighbours differ by one, both zeros are 0."""
    bits = tensor.contiguous().view(_INTEGERS[tensor.element_size()]).to(torch.int64)
    # The bits of negative numbers grow while the numbers fall: mirrored, so that neighbours differ by one
    # there too.
    lowest = -(1 << (8 * tensor.element_size() - 1))
    return torch.where(bits < 0, lowest - bits, bits)


def _ratio(one: torch.Tensor, other: torch.Tensor) -> float | None:
    """Return what one is to be multiplied by to be the other, where that is one number."""
    if not one.is_floating_point():
        return None
    first, second = one.double(), other.double()
    has_ratio = (first != 0) & first.isfinite() & second.isfinite()
    if not bool(has_ratio.any()) or bool((second[~has_ratio] != 0).any()):
        return None
    ratios = second[has_ratio] / first[has_ratio]
    middle = float(ratios.median())
    tolerance = 1e-2 if one.element_size() < 4 else 1e-4
    return middle if bool(((ratios - middle).abs() <= tolerance * abs(middle)).all()) else None
