"""What becomes of each entry of a source: the pieces of a plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

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
    def is_rechunked(self) -> bool:
        """Tell whether it is divided in another way than before."""
        return self.boxes != tuple((chunk.offsets, chunk.sizes) for chunk in self.source.chunks)


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
        leaves: The path of each leaf, and the entry of the source, or the value, that stands there.
        lists: The paths of lists without a leaf, which no leaf's path tells of.
    """

    name: str
    leaves: tuple[tuple[Path, Entry | InlineValue], ...]
    lists: tuple[Path, ...] = ()

    @property
    def sources(self) -> tuple[Entry, ...]:
        """Return the entries of the source that are in it."""
        return tuple(leaf for _, leaf in self.leaves if not isinstance(leaf, InlineValue))
