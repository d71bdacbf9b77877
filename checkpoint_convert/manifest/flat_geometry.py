"""How FSDP1 flattens parameters, in integers: units, alignment, padding, and who holds which elements.

A unit's parameters lie one after the other in one flat parameter. With ``use_orig_params=True`` each starts
at a multiple of 16 bytes (in elements of the unit's computing type), and the whole is padded to a multiple of
the ranks; otherwise nothing lies between them. Each rank holds as many elements as ``torch.chunk`` gives to
the first, the last ones padded at their right. The rules are those of
``torch.distributed.fsdp._flat_param.FlatParamHandle`` (``_init_flat_param_and_metadata``, ``_get_shard``),
unchanged from torch 2.1 to 2.15.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fsdp_migrate.checkpoint_convert.manifest.boxes import Box, Shape


@dataclass(frozen=True, slots=True)
class FlatUnit:
    """One FSDP1 unit.

    Attributes:
        name: The module that was wrapped; empty for the root.
        parameters: The shape of each parameter by its whole name, in the order in which they lie.
        alignment: The elements at multiples of which parameters start; 0 with ``use_orig_params=False``.
    """

    name: str
    parameters: Mapping[str, Shape]
    alignment: int = 0


class FlatSlice(NamedTuple):
    """Elements of a parameter that a rank holds: from ``start`` of it, ``numel`` of them, at ``offset``."""

    start: int
    numel: int
    offset: int


@dataclass(frozen=True, slots=True)
class FlatGeometry:
    """Who holds what of flattened parameters.

    Attributes:
        shapes: The shape of every flattened parameter.
        units: The parameters of each unit.
        totals: How many elements each unit has, padding included; without those of units that do not say.
        slices: By parameter and rank, what that rank holds and where in its part of the unit.
        ranks: How many ranks there are.
        ways: Over how many of them a unit is divided; further ones hold replicas.
    """

    shapes: Mapping[str, Shape]
    units: Mapping[str, tuple[str, ...]]
    totals: Mapping[str, int]
    slices: Mapping[str, Mapping[int, FlatSlice]]
    ranks: int
    ways: int

    def shard_size(self, unit: str) -> int:
        """Return how many elements of a unit each rank holds, padding included."""
        return shard_numel(self.totals[unit], self.ways)

    def shard_start(self, unit: str, rank: int) -> int:
        """Return where in a unit the part of a rank starts."""
        return self.shard_size(unit) * (rank % self.ways)


def place_parameters(unit: FlatUnit, ways: int) -> tuple[dict[str, int], int]:
    """Return where each parameter of a unit starts, and how many elements the unit has.

    Example:
        >>> unit = FlatUnit("", {"up.weight": (3, 2), "up.bias": (3,)}, alignment=4)
        >>> place_parameters(unit, 2)
        ({'up.weight': 0, 'up.bias': 8}, 12)
        >>> place_parameters(FlatUnit("", unit.parameters), 2)
        ({'up.weight': 0, 'up.bias': 6}, 9)
    """
    starts: dict[str, int] = {}
    total = 0
    for name, shape in unit.parameters.items():
        # Only with `use_orig_params=True` does torch pad the flat parameter itself. Otherwise it ends with
        # its last element, and each rank pads its own part.
        if unit.alignment:
            total += -total % unit.alignment
        starts[name] = total
        total += math.prod(shape)
    if unit.alignment:
        total += -total % ways
    return starts, total


def shard_numel(total: int, ways: int) -> int:
    """Return how many elements each rank holds, padding included.

    Example:
        >>> shard_numel(9, 2)
        5
    """
    return -(-total // ways)


def divide_units(units: tuple[FlatUnit, ...], ranks: int, ways: int) -> FlatGeometry:
    """Return who holds what when ``ranks`` ranks shard units over groups of ``ways``.

    Example:
        >>> unit = FlatUnit("", {"up.weight": (3, 2), "up.bias": (3,)})
        >>> divide_units((unit,), 2, 2).slices["up.weight"]
        {0: FlatSlice(start=0, numel=5, offset=0), 1: FlatSlice(start=5, numel=1, offset=0)}
    """
    shapes: dict[str, Shape] = {}
    totals: dict[str, int] = {}
    slices: dict[str, dict[int, FlatSlice]] = {}
    for unit in units:
        starts, totals[unit.name] = place_parameters(unit, ways)
        numel = shard_numel(totals[unit.name], ways)
        for name, shape in unit.parameters.items():
            shapes[name] = shape
            begin, end = starts[name], starts[name] + math.prod(shape)
            # Only the ranks that hold some of it are looked at: there can be a thousand of them.
            first, last = (begin // numel, (end - 1) // numel) if end > begin else (0, -1)
            held = {shard: _overlap(begin, end, shard * numel, numel) for shard in range(first, last + 1)}
            slices[name] = {
                group + shard: piece for group in range(0, ranks, ways) for shard, piece in held.items()
            }
    names = {unit.name: tuple(unit.parameters) for unit in units}
    return FlatGeometry(shapes, names, totals, slices, ranks, ways)


def _overlap(begin: int, end: int, start: int, numel: int) -> FlatSlice:
    low, high = max(begin, start), min(end, start + numel)
    return FlatSlice(low - begin, high - low, low - start)


def flat_boxes(shape: Shape, start: int, count: int) -> Iterator[tuple[Box, int]]:
    """Yield the boxes that ``count`` elements from ``start`` make of a tensor in row-major order.

    With each comes how many of these elements are before it. The elements of each box follow each other.

    Example:
        >>> list(flat_boxes((3, 4), 2, 7))
        [(((0, 2), (1, 2)), 0), (((1, 0), (1, 4)), 2), (((2, 0), (1, 1)), 6)]
        >>> list(flat_boxes((), 0, 1))
        [(((), ()), 0)]
    """
    yield from _boxes(shape, start, start + count, (), 0)


def _boxes(shape: Shape, start: int, end: int, index: Shape, before: int) -> Iterator[tuple[Box, int]]:
    """Yield the boxes of ``[start, end)`` of what lies at ``index``; ``before`` counts what came before."""
    if start >= end and 0 not in shape:
        return
    if len(shape) <= 1 or (start == 0 and end == math.prod(shape)):
        ones = (1,) * len(index)
        sizes = (end - start, *shape[1:]) if len(shape) == 1 else shape
        offsets = (start,) if len(shape) == 1 else (0,) * len(shape)
        yield ((*index, *offsets), (*ones, *sizes)), before
        return
    # A part of the first row, whole rows, a part of the last: boxes in the order of the elements.
    row = math.prod(shape[1:])
    first, last = start // row, end // row
    if start % row:
        stop = min(end, (first + 1) * row)
        yield from _boxes(shape[1:], start - first * row, stop - first * row, (*index, first), before)
        before, first = before + stop - start, first + 1
    if last > first:
        ones = (1,) * len(index)
        yield ((*index, first, *(0,) * (len(shape) - 1)), (*ones, last - first, *shape[1:])), before
        before += (last - first) * row
    if end % row and last >= first:
        yield from _boxes(shape[1:], 0, end - last * row, (*index, last), before)
