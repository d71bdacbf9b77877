"""Chunk geometry: which boxes tile a tensor, and which part of which box goes where. Integers only.

A box is a pair of tuples, offsets and sizes, one number per dimension. A tensor without dimensions has one
element, and is tiled by the one box ``((), ())``.
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


Shape = tuple[int, ...]
Box = tuple[Shape, Shape]


def chunk_rows(rows: int, parts: int) -> list[tuple[int, int]]:
    """Split ``rows`` as ``torch.chunk`` does, and so as ``fully_shard`` does: offset and count per part.

    Parts that would be empty are left out, so there may be fewer than ``parts``.

    Example:
        >>> chunk_rows(65, 2), chunk_rows(5, 4), chunk_rows(1, 8)
        ([(0, 33), (33, 32)], [(0, 2), (2, 2), (4, 1)], [(0, 1)])
    """
    if rows == 0:
        return [(0, 0)]
    # As many rows for each but the last: 5 rows for 4 ranks are 2, 2 and 1, and the fourth has none.
    size = -(-rows // parts)
    return [(start, min(size, rows - start)) for start in range(0, rows, size)]


def shard_boxes(shape: Shape, parts: int) -> list[Box]:
    """Split a tensor over ``parts`` ranks along its first dimension; a scalar is not split.

    Example:
        >>> shard_boxes((5, 3), 2)
        [((0, 0), (3, 3)), ((3, 0), (2, 3))]
        >>> shard_boxes((), 2)
        [((), ())]
    """
    if not shape:
        return [((), ())]
    rest = (0,) * (len(shape) - 1)
    return [((start, *rest), (count, *shape[1:])) for start, count in chunk_rows(shape[0], parts)]


def intersect(one: Box, other: Box) -> Box | None:
    """Return the box that two boxes share, or None where they share no element.

    Example:
        >>> intersect(((0, 0), (3, 3)), ((2, 1), (3, 9)))
        ((2, 1), (1, 2))
    """
    starts = tuple(map(max, one[0], other[0]))
    ends = tuple(min(a + m, b + n) for a, m, b, n in zip(*one, *other, strict=True))
    sizes = tuple(end - start for start, end in zip(starts, ends, strict=True))
    return (starts, sizes) if all(size > 0 for size in sizes) else None


def tiling_problem(shape: Shape, boxes: Sequence[Box]) -> str | None:
    """Say what keeps ``boxes`` from covering a tensor exactly once, or return None.

    Boxes that follow each other along the first dimension, which is all that FSDP writes, are checked in one
    sweep; others pair by pair among those that overlap along the first dimension, and by volume.

    Example:
        >>> tiling_problem((4,), [((0,), (2,)), ((2,), (2,))])
        >>> tiling_problem((4,), [((0,), (2,)), ((1,), (2,))])
        'the chunks at (0,) and (1,) overlap'
    """
    if _follow_each_other(shape, boxes):
        return None
    for offsets, sizes in boxes:
        if len(offsets) != len(shape) or len(sizes) != len(shape):
            return f"the chunk at {offsets} of {sizes} has another number of dimensions"
        if any(o < 0 or n < 0 or o + n > s for o, n, s in zip(offsets, sizes, shape, strict=True)):
            return f"the chunk at {offsets} of {sizes} reaches outside the tensor"
    filled = sorted(box for box in boxes if math.prod(box[1]) > 0)
    overlapping = _find_overlap(filled)
    if overlapping is not None:
        return f"the chunks at {overlapping[0][0]} and {overlapping[1][0]} overlap"
    missing = math.prod(shape) - sum(math.prod(sizes) for _, sizes in filled)
    if missing or not boxes:
        return f"{missing} of {math.prod(shape)} elements are in no chunk"
    return None


def _follow_each_other(shape: Shape, boxes: Sequence[Box]) -> bool:
    """Tell whether boxes are slices along the first dimension in their order, which needs no closer look."""
    if not shape or not boxes:
        return False
    at, below, origin = 0, shape[1:], (0,) * (len(shape) - 1)
    for offsets, sizes in boxes:
        if offsets[:1] != (at,) or offsets[1:] != origin or sizes[1:] != below or not sizes:
            return False
        at += sizes[0]
        if sizes[0] < 0:
            return False
    return at == shape[0]


def _find_overlap(boxes: Sequence[Box]) -> tuple[Box, Box] | None:
    """Return two boxes that share an element; ``boxes`` are sorted and none is empty."""
    active: list[Box] = []
    for box in boxes:
        if not box[0]:
            return (box, boxes[1]) if len(boxes) > 1 else None
        start = box[0][0]
        # Sorted by rows: only boxes that reach into those of this one can share an element with it.
        active = [other for other in active if other[0][0] + other[1][0] > start]
        for other in active:
            if intersect(box, other) is not None:
                return other, box
        active.append(box)
    return None


def blocks(box: Box, max_elements: int) -> Iterator[Box]:
    """Cut a box into boxes of at most ``max_elements``, each one run of its row-major data, in that order.

    Example:
        >>> list(blocks(((0, 0), (3, 4)), 8))
        [((0, 0), (2, 4)), ((2, 0), (1, 4))]
        >>> list(blocks(((0, 0), (2, 4)), 3))
        [((0, 0), (1, 3)), ((0, 3), (1, 1)), ((1, 0), (1, 3)), ((1, 3), (1, 1))]
    """
    offsets, sizes = box
    # The dimensions from `dim` on fit into one block together; the one before them is cut.
    dim, below = len(sizes), 1
    while dim > 0 and below * sizes[dim - 1] <= max_elements:
        dim -= 1
        below *= sizes[dim]
    if dim == 0:
        yield box
        return
    split = dim - 1
    step = max(max_elements // below, 1)
    for index in _indices(sizes[:split]):
        for start in range(0, sizes[split], step):
            count = min(step, sizes[split] - start)
            begin = tuple(o + i for o, i in zip(offsets, index, strict=False))
            yield (
                (*begin, offsets[split] + start, *offsets[dim:]),
                (*(1,) * split, count, *sizes[dim:]),
            )


def paired_runs(part: Box, source: Box, target: Box) -> Iterator[tuple[int, int, int]]:
    """Yield what must be copied to move ``part`` from the data of one box to that of another.

    Each run is the first element in the row-major data of ``source``, the first in that of ``target``, and a
    count of elements that follow each other in both. ``part`` lies inside both boxes.

    Example:
        >>> list(paired_runs(((2, 0), (2, 4)), ((0, 0), (4, 4)), ((2, 0), (4, 4))))
        [(8, 0, 8)]
        >>> list(paired_runs(((0, 1), (2, 2)), ((0, 0), (2, 4)), ((0, 1), (2, 2))))
        [(1, 0, 2), (5, 2, 2)]
    """
    sizes = part[1]
    whole = len(sizes)
    # Dimensions at the end that are whole in both make one run, together with the one before them.
    while whole > 0 and sizes[whole - 1] == source[1][whole - 1] == target[1][whole - 1]:
        whole -= 1
    single = max(whole - 1, 0)
    count = math.prod(sizes[single:])
    source_strides, target_strides = row_major_strides(source[1]), row_major_strides(target[1])
    source_base = _flat(part[0], source[0], source_strides)
    target_base = _flat(part[0], target[0], target_strides)
    for index in _indices(sizes[:single]):
        yield (
            source_base + sum(map(operator.mul, index, source_strides)),
            target_base + sum(map(operator.mul, index, target_strides)),
            count,
        )


def _flat(point: Shape, origin: Shape, strides: Shape) -> int:
    return sum((p - o) * s for p, o, s in zip(point, origin, strides, strict=True))


def row_major_strides(shape: Sequence[int]) -> Shape:
    """Return the strides of a contiguous tensor, in elements, as torch counts them.

    Example:
        >>> row_major_strides((2, 3, 4)), row_major_strides((2, 0))
        ((12, 4, 1), (1, 1))
    """
    strides = [1] * len(shape)
    for dim in range(len(shape) - 2, -1, -1):
        strides[dim] = strides[dim + 1] * max(shape[dim + 1], 1)
    return tuple(strides)


def _indices(shape: Iterable[int]) -> Iterator[Shape]:
    """Yield every index into ``shape`` in row-major order, without a table of them."""
    sizes = tuple(shape)
    for number in range(math.prod(sizes)):
        index, rest = [], number
        for size in reversed(sizes):
            rest, digit = divmod(rest, size)
            index.append(digit)
        yield tuple(reversed(index))
