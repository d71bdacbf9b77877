"""Tensors put together from parts of others: stacked, concatenated, split, transposed. Integers only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from fsdp_migrate.checkpoint_convert.manifest.boxes import Box, Shape, intersect
from fsdp_migrate.checkpoint_convert.manifest.dtypes import DTYPES
from fsdp_migrate.checkpoint_convert.manifest.item_views import NEW, ItemView, is_whole, viewed_elements
from fsdp_migrate.checkpoint_convert.manifest.manifest import Chunk, RawElements, Stored


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fsdp_migrate.checkpoint_convert.manifest.manifest import TensorEntry


class Piece(NamedTuple):
    """A box of a source that lies in a new tensor.

    Attributes:
        source: The name of the source.
        box: The box, in the source's dimensions.
        dims: For each dimension of the new tensor the one of the source, or ``NEW``.
        at: Where in the new tensor it begins.
    """

    source: str
    box: Box
    dims: tuple[int, ...]
    at: Shape

    def sizes(self) -> Shape:
        """Return its sizes in the new tensor."""
        return tuple(1 if dim == NEW else self.box[1][dim] for dim in self.dims)


@dataclass(frozen=True, slots=True)
class Pieced:
    """A tensor of some shape, made of pieces of others."""

    shape: Shape
    pieces: tuple[Piece, ...]

    @property
    def sources(self) -> tuple[str, ...]:
        """Return the names of what it is made of, each once, in order."""
        return tuple(dict.fromkeys(piece.source for piece in self.pieces))


def whole(name: str, shape: Shape) -> Pieced:
    """Return a source as it is."""
    origin = (0,) * len(shape)
    return Pieced(shape, (Piece(name, (origin, shape), tuple(range(len(shape))), origin),))


def stack(tensors: Sequence[Pieced], dim: int) -> Pieced:
    """Put tensors of one shape behind each other along a new dimension, as ``torch.stack`` does.

    Raises:
        ValueError: Shapes differ, or there is no such dimension.

    Example:
        >>> both = stack([whole("a", (2, 3)), whole("b", (2, 3))], 0)
        >>> both.shape, both.pieces[1].at, both.pieces[1].dims
        ((2, 2, 3), (1, 0, 0), (-1, 0, 1))
    """
    shape = tensors[0].shape
    if any(tensor.shape != shape for tensor in tensors):
        raise ValueError(f"the shapes differ: {_shapes(tensors)}")
    dim = _checked(dim, len(shape) + 1)
    pieces = [
        piece._replace(dims=_with(piece.dims, dim, NEW), at=_with(piece.at, dim, number))
        for number, tensor in enumerate(tensors)
        for piece in tensor.pieces
    ]
    return Pieced(_with(shape, dim, len(tensors)), tuple(pieces))


def concatenate(tensors: Sequence[Pieced], dim: int) -> Pieced:
    """Put tensors behind each other along a dimension, as ``torch.cat`` does.

    Raises:
        ValueError: Shapes differ in another dimension, or there is no such dimension.

    Example:
        >>> concatenate([whole("a", (2, 3)), whole("b", (4, 3))], 0).shape
        (6, 3)
    """
    first = tensors[0].shape
    dim = _checked(dim, len(first))
    if any(_without(tensor.shape, dim) != _without(first, dim) for tensor in tensors):
        raise ValueError(f"the shapes differ: {_shapes(tensors)}")
    pieces: list[Piece] = []
    end = 0
    for tensor in tensors:
        pieces += [piece._replace(at=_set(piece.at, dim, piece.at[dim] + end)) for piece in tensor.pieces]
        end += tensor.shape[dim]
    return Pieced(_set(first, dim, end), tuple(pieces))


def transpose(tensor: Pieced, one: int, other: int) -> Pieced:
    """Change two dimensions of a tensor, as ``torch.transpose`` does.

    Raises:
        ValueError: There is no such dimension.

    Example:
        >>> transpose(whole("a", (2, 3)), 0, 1).shape
        (3, 2)
    """
    ndim = len(tensor.shape)
    order = list(range(ndim))
    one, other = _checked(one, ndim), _checked(other, ndim)
    order[one], order[other] = order[other], order[one]
    pieces = [
        piece._replace(dims=tuple(piece.dims[d] for d in order), at=tuple(piece.at[d] for d in order))
        for piece in tensor.pieces
    ]
    return Pieced(tuple(tensor.shape[d] for d in order), tuple(pieces))


def split(tensor: Pieced, count: int, dim: int) -> list[Pieced]:
    """Divide a tensor into equal parts along a dimension.

    Raises:
        ValueError: It cannot be divided so, or there is no such dimension.

    Example:
        >>> [part.pieces[0].box for part in split(whole("a", (4, 3)), 2, 0)]
        [((0, 0), (2, 3)), ((2, 0), (2, 3))]
    """
    dim = _checked(dim, len(tensor.shape))
    size = tensor.shape[dim]
    if size % count:
        raise ValueError(f"{size} along dimension {dim} is not divided by {count}")
    step = size // count
    return [_cut(tensor, dim, number * step, step) for number in range(count)]


def unstack(tensor: Pieced, dim: int) -> list[Pieced]:
    """Take a tensor apart along a dimension, which goes, as ``torch.unbind`` does.

    Raises:
        ValueError: There is no such dimension.

    Example:
        >>> [part.shape for part in unstack(whole("a", (2, 4, 3)), 0)]
        [(4, 3), (4, 3)]
    """
    dim = _checked(dim, len(tensor.shape))
    parts = [_cut(tensor, dim, number, 1) for number in range(tensor.shape[dim])]
    return [
        Pieced(
            _without(part.shape, dim),
            tuple(p._replace(dims=_without(p.dims, dim), at=_without(p.at, dim)) for p in part.pieces),
        )
        for part in parts
    ]


def chunks_of(tensor: Pieced, sources: Mapping[str, TensorEntry]) -> tuple[Chunk, ...]:
    """Return the chunks of a tensor that is put together; they stay where they lie in the sources' files.

    Args:
        tensor: The tensor.
        sources: The entry of each source.
    """
    found = [
        chunk
        for piece in tensor.pieces
        for part in sources[piece.source].chunks
        if (chunk := _chunk(piece, part, sources[piece.source].dtype)) is not None
    ]
    if not found and math.prod(tensor.shape) == 0:
        origin = (0,) * len(tensor.shape)
        return (Chunk(origin, tensor.shape, Stored(_first_file(tensor, sources), 0, 0, RawElements())),)
    return tuple(found)


def _first_file(tensor: Pieced, sources: Mapping[str, TensorEntry]) -> str:
    return next(chunk.stored.file for name in tensor.sources for chunk in sources[name].chunks)


def _chunk(piece: Piece, chunk: Chunk, dtype: str) -> Chunk | None:
    """Return the part of a source's chunk that lies in a piece, where that lies in the new tensor."""
    part = intersect(piece.box, (chunk.offsets, chunk.sizes))
    if part is None:
        return None
    offsets = tuple(
        at if dim == NEW else at + part[0][dim] - piece.box[0][dim]
        for at, dim in zip(piece.at, piece.dims, strict=True)
    )
    sizes = tuple(1 if dim == NEW else part[1][dim] for dim in piece.dims)
    starts = tuple(p - o for p, o in zip(part[0], chunk.offsets, strict=True))
    view = ItemView(chunk.sizes, piece.dims, starts, sizes)
    return Chunk(offsets, sizes, _viewed(chunk.stored, view, DTYPES[dtype].itemsize))


def _viewed(stored: Stored, view: ItemView, itemsize: int) -> Stored:
    """Return where the elements of a view of an item lie; of an archive only opening it will tell."""
    if is_whole(view):
        return stored
    # Dimensions of a view of a view are not composed here: a map is applied once.
    if stored.view is not None:
        raise AssertionError("A map was applied to what a map had made.")
    raw = stored.raw
    if raw is None:
        return stored._replace(view=view)
    strides, start = viewed_elements(view, raw.strides, raw.start)
    if strides is not None:
        return stored._replace(raw=raw._replace(strides=strides, start=start))
    return Stored(
        stored.file,
        stored.offset + start * itemsize,
        math.prod(view.sizes) * itemsize,
        RawElements(record=raw.record),
    )


def _cut(tensor: Pieced, dim: int, start: int, size: int) -> Pieced:
    """Return a slice of a tensor along one dimension."""
    return Pieced(_set(tensor.shape, dim, size), tuple(_cut_pieces(tensor.pieces, dim, start, size)))


def _cut_pieces(pieces: Sequence[Piece], dim: int, start: int, size: int) -> Iterator[Piece]:
    for piece in pieces:
        at, own = piece.at[dim], piece.dims[dim]
        begin, end = max(at, start), min(at + piece.sizes()[dim], start + size)
        if begin >= end:
            continue
        box = piece.box
        if own != NEW:
            box = _set(box[0], own, box[0][own] + begin - at), _set(box[1], own, end - begin)
        yield piece._replace(box=box, at=_set(piece.at, dim, begin - start))


def _checked(dim: int, ndim: int) -> int:
    if not -ndim <= dim < ndim:
        raise ValueError(f"there is no dimension {dim} in {ndim}")
    return dim % ndim


def _with(shape: Shape, dim: int, value: int) -> Shape:
    return (*shape[:dim], value, *shape[dim:])


def _without(shape: Shape, dim: int) -> Shape:
    return (*shape[:dim], *shape[dim + 1 :])


def _set(shape: Shape, dim: int, value: int) -> Shape:
    return (*shape[:dim], value, *shape[dim + 1 :])


def _shapes(tensors: Sequence[Pieced]) -> str:
    return " and ".join(str(list(shape)) for shape in dict.fromkeys(tensor.shape for tensor in tensors))
