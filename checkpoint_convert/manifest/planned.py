"""What becomes of each entry of a source: the pieces of a plan."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fsdp_migrate.checkpoint_convert.manifest.dtypes import DTYPES
from fsdp_migrate.checkpoint_convert.manifest.manifest import BytesEntry, Entry, InlineValue, TensorEntry


if TYPE_CHECKING:
    from collections.abc import Mapping

    from fsdp_migrate.checkpoint_convert.manifest.boxes import Box
    from fsdp_migrate.checkpoint_convert.manifest.keys import Path


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """What a tensor becomes: its key, path and type, and the boxes that it is divided into.

    ``folder`` is where in the output it lies: below it, or "" for the output itself. Each such folder is a
    distributed checkpoint of its own.
    """

    key: str
    path: Path | None
    source: TensorEntry
    dtype: str
    boxes: tuple[Box, ...]
    folder: str = ""

    @property
    def is_cast(self) -> bool:
        """Tell whether its type changes."""
        return self.dtype != self.source.dtype

    @property
    def nbytes(self) -> int:
        """Return its bytes in the output."""
        return math.prod(self.source.shape) * DTYPES[self.dtype].itemsize

    @property
    def is_rechunked(self) -> bool:
        """Tell whether it is divided in another way than before."""
        chunks = self.source.chunks
        if len(chunks) == 1 == len(self.boxes):
            return chunks[0][:2] != self.boxes[0]
        return self.boxes != tuple((chunk.offsets, chunk.sizes) for chunk in chunks)


@dataclass(frozen=True, slots=True)
class PlannedValue:
    """What another value becomes; ``names`` are replaced inside it, and nothing else is.

    With ``pick`` it is only a part of the source's value: the one at these indexes and keys.
    """

    key: str
    path: Path | None
    source: BytesEntry
    names: Mapping[str, str]
    folder: str = ""
    pick: Path = ()

    @property
    def is_new(self) -> bool:
        """Tell whether its bytes are not those of the source."""
        return bool(self.names or self.pick or self.source.inline is not None)


PlannedEntry = PlannedTensor | PlannedValue


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file of ``torch.save`` beside the data: a nested state, with entries of the source at its leaves.

    Attributes:
        name: The name of the file in the output.
        leaves: The path of each leaf, and what stands there: an entry of the source as it is, what becomes of
            one, or a value. Tensors that are planned are streamed into the file; others are small.
        lists: The paths of lists without a leaf, which no leaf's path tells of.
    """

    name: str
    leaves: tuple[tuple[Path, Entry | InlineValue | PlannedEntry], ...]
    lists: tuple[Path, ...] = ()

    @property
    def planned(self) -> tuple[PlannedEntry, ...]:
        """Return what becomes of entries of the source in it."""
        return tuple(leaf for _, leaf in self.leaves if isinstance(leaf, PlannedTensor | PlannedValue))

    @property
    def sources(self) -> tuple[Entry, ...]:
        """Return the entries of the source that are in it."""
        own = tuple(leaf for _, leaf in self.leaves if isinstance(leaf, TensorEntry | BytesEntry))
        return own + tuple(leaf.source for leaf in self.planned)
