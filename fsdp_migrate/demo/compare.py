"""Compares the two runs: their losses, and their final states bit for bit."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How two sets of values compare: how many, how many differ in any bit, and by how much at most."""

    num_values: int
    num_different: int
    largest_difference: float
    first_different: str | None

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison as it stands in JSON reports."""
        return asdict(self)


def compare_states(first: object, second: object) -> Comparison:
    """Compare two nested state dicts; a value that only one of them has counts as different.

    Example:
        >>> compare_states({"a": torch.zeros(2)}, {"a": torch.tensor([0.0, 0.5])}).largest_difference
        0.5
    """
    left, right = dict(_leaves(first)), dict(_leaves(second))
    different = [name for name in sorted(left.keys() | right.keys()) if not _same(name, left, right)]
    gaps = [_gap(left.get(name), right.get(name)) for name in different]
    return Comparison(
        num_values=len(left.keys() | right.keys()),
        num_different=len(different),
        largest_difference=max(gaps, default=0.0),
        first_different=different[0] if different else None,
    )


def _leaves(state: object, path: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(state, dict):
        for key, value in state.items():
            yield from _leaves(value, f"{path}.{key}" if path else str(key))
    elif isinstance(state, list):
        for index, value in enumerate(state):
            yield from _leaves(value, f"{path}.{index}")
    else:
        yield path, state


def _same(name: str, left: Mapping[str, object], right: Mapping[str, object]) -> bool:
    if name not in left or name not in right:
        return False
    one, other = left[name], right[name]
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        # By bits: a NaN equals itself, and -0.0 is not 0.0.
        return one.shape == other.shape and one.dtype == other.dtype and torch.equal(_bits(one), _bits(other))
    return type(one) is type(other) and one == other


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def _gap(one: object, other: object) -> float:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and one.shape == other.shape:
        return (one.double() - other.double()).abs().max().item()
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return abs(one - other)
    return float("inf")
