"""Read a box of a tensor whose elements do not follow each other, in bounded memory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np


if TYPE_CHECKING:
    from fsdp_migrate.checkpoint_convert.manifest.boxes import Shape
    from fsdp_migrate.checkpoint_convert.storage.folders import Folder


# What lies between the elements is read along as long as it is not more than this, or than the elements.
_SMALL: Final = 64 << 10
_WASTE: Final = 4
# One read. What is read along counts as memory, too: it must stay small beside the block that is asked for.
_LARGEST: Final = 1 << 20


class StridedReader:
    """Reads from elements that lie at ``position`` of ``file``, with ``strides`` in elements."""

    def __init__(self, folder: Folder, file: str, position: int, itemsize: int, strides: Shape) -> None:
        self._folder = folder
        self._file = file
        self._position = position
        self._itemsize = itemsize
        self._strides = strides

    def read(self, start: int, sizes: Shape) -> Any:
        """Return the elements of a box in row-major order, as an array of opaque items.

        Args:
            start: The place of its first element, counted in elements from ``position``.
            sizes: Its shape.
        """
        out: Any = np.empty(sizes, np.dtype((np.void, self._itemsize)))
        self.read_into(out, start)
        return out

    def read_into(self, out: Any, start: int) -> None:
        """Fill an array of opaque items with the elements of a box of its shape; see ``read``."""
        sizes: Shape = out.shape
        count = math.prod(sizes)
        if count == 0:
            return
        span = 1 + sum((n - 1) * s for n, s in zip(sizes, self._strides, strict=True))
        nbytes = span * self._itemsize
        if nbytes > _LARGEST or (nbytes > _SMALL and span > _WASTE * count):
            # The dimension whose neighbours lie furthest apart; there is one of more than one element.
            dim = max(range(len(sizes)), key=lambda d: self._strides[d] if sizes[d] > 1 else -1)
            half = sizes[dim] // 2
            index: list[Any] = [slice(None)] * len(sizes)
            index[dim] = slice(0, half)
            self.read_into(out[tuple(index)], start)
            index[dim] = slice(half, None)
            self.read_into(out[tuple(index)], start + half * self._strides[dim])
            return
        raw = self._folder.read(self._file, self._position + start * self._itemsize, nbytes)
        cells: Any = np.frombuffer(raw, np.dtype((np.void, self._itemsize)))
        steps = [stride * self._itemsize for stride in self._strides]
        out[...] = np.lib.stride_tricks.as_strided(cells, sizes, steps)
