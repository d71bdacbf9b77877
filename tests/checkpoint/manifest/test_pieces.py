"""Tensors that are put together from parts of others, held against what torch does."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
import torch

from fsdp_migrate.checkpoint_convert.manifest.boxes import row_major_strides, tiling_problem
from fsdp_migrate.checkpoint_convert.manifest.item_views import viewed_elements
from fsdp_migrate.checkpoint_convert.manifest.manifest import Chunk, RawElements, Stored, TensorEntry
from fsdp_migrate.checkpoint_convert.manifest.parameter_map import Operation, carry_out
from fsdp_migrate.checkpoint_convert.manifest.pieces import (
    chunks_of,
    concatenate,
    split,
    stack,
    transpose,
    whole,
)


if TYPE_CHECKING:
    from collections.abc import Sequence

    from fsdp_migrate.checkpoint_convert.manifest.pieces import Pieced


pytestmark = pytest.mark.any_torch

SHAPE = (4, 6)
NAMES = ("gate.0", "gate.1", "up.0", "up.1")
TENSORS = {name: 100 * n + torch.arange(24.0).reshape(SHAPE) for n, name in enumerate(NAMES)}


def entries(cuts: Sequence[int], *, raw: bool) -> dict[str, TensorEntry]:
    """Describe the tensors as stored in rows that are cut at some places, a file for each part."""
    found = {}
    for name in NAMES:
        chunks = []
        for start, end in zip((0, *cuts), (*cuts, SHAPE[0]), strict=True):
            stored = Stored(f"{name} {start}", 0, 24 * (end - start), RawElements() if raw else None)
            chunks.append(Chunk((start, 0), (end - start, SHAPE[1]), stored))
        found[name] = TensorEntry(name, None, "float32", SHAPE, tuple(chunks))
    return found


def read(tensor: Pieced, cuts: Sequence[int], *, raw: bool) -> torch.Tensor:
    """Put a tensor together from its chunks, as a reader of the files would."""
    chunks = chunks_of(tensor, entries(cuts, raw=raw))
    assert tiling_problem(tensor.shape, [chunk[:2] for chunk in chunks]) is None
    out = torch.full(tensor.shape, -1.0)
    ends = [*cuts, SHAPE[0]]
    for chunk in chunks:
        name, start = chunk.stored.file.rsplit(" ", 1)
        item = TENSORS[name][int(start) : min(end for end in ends if end > int(start))].flatten().clone()
        view = chunk.stored.view
        if chunk.stored.raw is not None:
            strides, first = chunk.stored.raw.strides, chunk.stored.raw.start + chunk.stored.offset // 4
        elif view is not None:
            strides, first = viewed_elements(view, None, 0)
        else:
            strides, first = None, 0
        part = item.as_strided(chunk.sizes, strides or row_major_strides(chunk.sizes), first)
        out[tuple(slice(o, o + n) for o, n in zip(chunk.offsets, chunk.sizes, strict=True))] = part
    return out


def joined() -> Pieced:
    gate, up = ([whole(f"{name}.{number}", SHAPE) for number in range(2)] for name in ("gate", "up"))
    return carry_out([Operation("stack", 0), Operation("concatenate", 1)], [gate, up], 1)[0]


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("cuts", [(), (2,), (1, 3)])
def test_what_torch_does_with_whole_tensors(cuts: Sequence[int], raw: bool) -> None:
    gate, up = (torch.stack([TENSORS[f"{name}.{n}"] for n in range(2)]) for name in ("gate", "up"))
    expected = torch.cat([gate, up], dim=1)
    assert torch.equal(read(joined(), cuts, raw=raw), expected)
    assert torch.equal(read(transpose(joined(), 1, 2), cuts, raw=raw), expected.transpose(1, 2))
    last = stack([whole("gate.0", SHAPE), whole("up.1", SHAPE)], 2)
    assert torch.equal(read(last, cuts, raw=raw), torch.stack([TENSORS["gate.0"], TENSORS["up.1"]], 2))
    halves = split(transpose(concatenate([whole("gate.0", SHAPE), whole("up.0", SHAPE)], 1), 0, 1), 2, 0)
    assert torch.equal(read(halves[1], cuts, raw=raw), TENSORS["up.0"].T)


@pytest.mark.parametrize("raw", [False, True])
def test_what_is_taken_apart_is_what_was_put_together(raw: bool) -> None:
    apart = carry_out([Operation("split", 1), Operation("unstack", 0)], [[joined()]], 2)
    assert [part.sources for part in apart] == [(name,) for name in NAMES]
    for part, name in zip(apart, NAMES, strict=True):
        assert torch.equal(read(part, (1,), raw=raw), TENSORS[name])


def test_an_empty_tensor_has_a_chunk() -> None:
    empty = TensorEntry("a", None, "float32", (0, 3), (Chunk((0, 0), (0, 3), Stored("file", 5, 7)),))
    tensor = stack([whole("a", (0, 3))], 0)
    assert math.prod(tensor.shape) == 0
    assert [chunk[:2] for chunk in chunks_of(tensor, {"a": empty})] == [((0, 0, 0), (1, 0, 3))]
