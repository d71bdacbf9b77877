"""Where two tensors of one shape differ, in how many elements, and by how much."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fsdp_migrate.checkpoint_convert.formats.cast import Caster
from fsdp_migrate.checkpoint_convert.manifest.dtypes import DTYPES


@dataclass(frozen=True, slots=True)
class TensorDifference:
    """How two tensors differ.

    Attributes:
        index: The first element that differs.
        count: How many elements differ.
        size: How many there are.
        values: The first two that differ, as text; None where the type has no numbers here (float8).
        largest: The largest absolute difference; None where there is none to tell: bool, float8, only NaN.
        num_nan: In how many of the elements that differ one or both are NaN.
        scale: The largest number of the first, without its sign, in the blocks that were read where it
            differs: what ``largest`` is to be seen beside. None where ``largest`` is.
    """

    index: tuple[int, ...]
    count: int
    size: int
    values: tuple[str, str] | None
    largest: float | None
    num_nan: int
    scale: float | None = None

    def __str__(self) -> str:
        by = "" if self.largest is None else f", by at most {self.largest:.3g}"
        nan = f", with NaN in {self.num_nan:,}" if self.num_nan else ""
        values = "" if self.values is None else f": {' and '.join(self.values)}"
        of = f"{self.count:,} of {self.size:,} elements"
        return f"differs in {of}{by}{nan}; the first is at {list(self.index)}{values}"


class TensorComparison:
    """Compares two tensors block by block: the second with the first, or with the first cast to its type.

    Args:
        dtype: The type of the first.
        other_dtype: The type of the second.
    """

    def __init__(self, dtype: str, other_dtype: str) -> None:
        self._caster = Caster(dtype, other_dtype) if dtype != other_dtype else None
        self._dtype = other_dtype
        self._itemsize = DTYPES[other_dtype].itemsize
        self._done = self._count = self._num_nan = 0
        self._first: int | None = None
        self._values: tuple[str, str] | None = None
        self._largest: float | None = None
        self._scale: float | None = None

    def add(self, block: memoryview, other: memoryview) -> None:
        """Compare as many elements of each."""
        one = block if self._caster is None else self._caster.cast(block)
        a, b = np.frombuffer(one, np.uint8), np.frombuffer(other, np.uint8)
        if not np.array_equal(a, b):
            different = (a != b).reshape(-1, self._itemsize).any(axis=1)
            if self._caster is not None:
                # Which bits a NaN has depends in torch on how many values are cast at once.
                different &= ~(self._caster.is_nan(one) & self._caster.is_nan(other))
            places = np.flatnonzero(different)
            if places.size:
                self._note(places, _numbers(a, self._dtype), _numbers(b, self._dtype))
        self._done += len(other) // self._itemsize

    def _note(self, places: Any, one: Any, other: Any) -> None:
        is_first = self._first is None
        if is_first:
            self._first = self._done + int(places[0])
        self._count += len(places)
        if one is None or other is None:
            return
        block, one, other = one, one[places], other[places]
        if is_first:
            self._values = str(one[0]), str(other[0])
        sizes = _distances(one, other)
        if sizes is not None:
            is_nan = np.isnan(sizes)
            self._num_nan += int(is_nan.sum())
            known = sizes[~is_nan]
            if known.size:
                self._largest = max(float(known.max()), self._largest or 0.0)
                finite = np.abs(block[np.isfinite(block)])
                self._scale = max(float(finite.max(initial=0)), self._scale or 0.0)

    def result(self, shape: tuple[int, ...]) -> TensorDifference | None:
        """Return how they differ, or None where they are the same."""
        if self._first is None:
            return None
        index = tuple(int(i) for i in np.unravel_index(self._first, shape))
        size = math.prod(shape)
        sizes = self._largest, self._num_nan, self._scale
        return TensorDifference(index, self._count, size, self._values, *sizes)


def _numbers(data: Any, dtype: str) -> Any:
    """Return bytes as an array of numbers that NumPy knows, or None for float8, which it does not."""
    if dtype == "bfloat16":
        # A bfloat16 is the upper half of a float32.
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return None if dtype.startswith("float8") else data.view(dtype)


def _distances(one: Any, other: Any) -> Any:
    """Return the absolute differences of numbers, or None for truth values."""
    if one.dtype == np.bool_:
        return None
    if one.dtype.kind in "iu":
        # Modulo 2**64, so that what is far apart does not overflow and what is large stays exact.
        return np.maximum(one, other).astype(np.uint64) - np.minimum(one, other).astype(np.uint64)
    wide = np.complex128 if one.dtype.kind == "c" else np.float64
    with np.errstate(invalid="ignore", over="ignore"):
        return np.abs(one.astype(wide) - other.astype(wide))
