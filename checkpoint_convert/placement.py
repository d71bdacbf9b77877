"""Which item of the output lies where: files, offsets and lengths, before a byte is written. Pure."""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.metadata import (
    BytesEntry,
    Chunk,
    Entry,
    Stored,
    TensorEntry,
)
from fsdp_migrate.checkpoint_convert.plan import ConversionPlan, PlannedTensor, PlannedValue
from fsdp_migrate.checkpoint_convert.torch_zip_writer import TensorArchive, tensor_archive


if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from fsdp_migrate.checkpoint_convert.reshard import Box


_NAMES_FILE: Final = "__names_0.distcp"
_LINKED: Final = ".linked.distcp"


@dataclass(frozen=True, slots=True)
class CopyItem:
    """An item that is taken over byte for byte."""

    source: Stored
    length: int


@dataclass(frozen=True, slots=True)
class DataItem:
    """An item whose bytes are in memory."""

    data: bytes

    @property
    def length(self) -> int:
        """Return its size."""
        return len(self.data)


@dataclass(frozen=True, slots=True)
class TensorItem:
    """A box of a tensor that is put together anew."""

    tensor: PlannedTensor
    box: Box
    archive: TensorArchive

    @property
    def length(self) -> int:
        """Return its size."""
        return self.archive.length


Item = CopyItem | DataItem | TensorItem


@dataclass(frozen=True, slots=True)
class Placement:
    """What an output consists of.

    Attributes:
        taken: Data files of the source that are linked or copied whole, with their new names.
        files: Data files that are written: their items, in order.
        entries: What the output's metadata says.
    """

    taken: Mapping[str, str]
    files: Mapping[str, Sequence[Item]]
    entries: tuple[Entry, ...]

    @property
    def nbytes(self) -> int:
        """Return the bytes that are written."""
        return sum(item.length for items in self.files.values() for item in items)


def place(plan: ConversionPlan, values: Mapping[str, bytes]) -> Placement:
    """Lay an output out.

    Args:
        plan: The conversion.
        values: The new bytes of the items whose content changes, by source key.
    """
    return _Placer(plan, values).place()


class _Placer:
    def __init__(self, plan: ConversionPlan, values: Mapping[str, bytes]) -> None:
        self._plan = plan
        self._values = values
        self._files: defaultdict[str, list[Item]] = defaultdict(list)
        self._ends: defaultdict[str, int] = defaultdict(int)
        self._shares = plan.action != "rewrite"
        self._taken = linked_names(plan.manifest.files) if self._shares else {}
        self._last: tuple[PlannedTensor, dict[Box, Stored]] | None = None
        self._queue: list[tuple[int, int]] | None = None
        self._names_file = unused_name(_NAMES_FILE, self._taken.values())

    @property
    def _stays(self) -> bool:
        is_named = self._plan.manifest.is_relinkable and self._plan.world_size is None
        return self._shares or is_named

    def place(self) -> Placement:
        chunks: dict[str, list[Chunk]] = {e.key: [] for e in self._plan.tensors}
        singles: list[PlannedTensor | PlannedValue] = []
        for entry in self._plan.entries:
            if isinstance(entry, PlannedTensor) and self._stays:
                chunks[entry.key] = self._as_stored(entry)
            elif isinstance(entry, PlannedTensor) and len(entry.boxes) > 1:
                chunks[entry.key] = [
                    Chunk(*box, self._append(_rank_file(rank), self._item(entry, box)))
                    for rank, box in enumerate(entry.boxes)
                ]
            else:
                singles.append(entry)
        stored: dict[str, Stored] = {}
        for entry in singles:
            if isinstance(entry, PlannedValue):
                stored[entry.key] = self._value(entry)
            else:
                box = entry.boxes[0]
                chunks[entry.key] = [Chunk(*box, self._append_anywhere(self._item(entry, box)))]
        entries = tuple(
            _tensor_entry(entry, chunks[entry.key])
            if isinstance(entry, PlannedTensor)
            else BytesEntry(entry.key, entry.path, stored[entry.key])
            for entry in self._plan.entries
        )
        return Placement(self._taken, self._files, entries)

    def _as_stored(self, entry: PlannedTensor) -> list[Chunk]:
        """Leave chunks in the files in which they are; in linked files they do not even move."""
        placed: list[Chunk] = []
        for chunk, box in zip(entry.source.chunks, entry.boxes, strict=True):
            if self._shares:
                stored = chunk.stored._replace(file=self._taken[chunk.stored.file])
            else:
                stored = self._append(chunk.stored.file, self._item(entry, box))
            placed.append(Chunk(*box, stored))
        return placed

    def _value(self, entry: PlannedValue) -> Stored:
        source = entry.source
        new = self._values.get(source.key)
        if self._shares and new is None:
            return source.stored._replace(file=self._taken[source.stored.file])
        item: Item = CopyItem(source.stored, source.stored.length) if new is None else DataItem(new)
        if self._shares:
            return self._append(self._names_file, item)
        if self._stays:
            return self._append(source.stored.file, item)
        return self._append_anywhere(item)

    def _item(self, entry: PlannedTensor, box: Box) -> Item:
        stored = None if entry.is_cast else self._whole_chunks(entry).get(box)
        if stored is not None:
            return CopyItem(stored, stored.length)
        return TensorItem(entry, box, tensor_archive(entry.dtype, box[1]))

    def _whole_chunks(self, entry: PlannedTensor) -> dict[Box, Stored]:
        """Return the items of the source by their boxes; kept, because boxes of a tensor come in a row."""
        if self._last is None or self._last[0] is not entry:
            items = [chunk for chunk in entry.source.chunks if chunk.stored.raw is None]
            self._last = (entry, {(c.offsets, c.sizes): c.stored for c in items})
        return self._last[1]

    def _append(self, file: str, item: Item) -> Stored:
        stored = Stored(file, self._ends[file], item.length)
        self._files[file].append(item)
        self._ends[file] += item.length
        return stored

    def _append_anywhere(self, item: Item) -> Stored:
        """Append to the file of the rank that has the least so far."""
        if self._queue is None:
            ranks = range(self._plan.world_size or 1)
            self._queue = [(self._ends.get(_rank_file(rank), 0), rank) for rank in ranks]
            heapq.heapify(self._queue)
        _, rank = self._queue[0]
        stored = self._append(_rank_file(rank), item)
        heapq.heapreplace(self._queue, (stored.offset + stored.length, rank))
        return stored


def _rank_file(rank: int) -> str:
    return f"__{rank}_0.distcp"


def _tensor_entry(entry: PlannedTensor, chunks: Sequence[Chunk]) -> TensorEntry:
    return TensorEntry(
        key=entry.key,
        path=entry.path,
        dtype=entry.dtype,
        shape=entry.source.shape,
        chunks=tuple(chunks),
        requires_grad=entry.source.requires_grad,
        memory_format=entry.source.memory_format,
    )


def linked_names(files: Collection[str]) -> dict[str, str]:
    """Return the names under which data files of the source stand in an output that shares their bytes.

    They are not the names that torch gives to data files. If a run saves into the output later, torch opens
    ``__0_0.distcp`` for writing as it is, and with a hard link of that name the source would be gone.

    Example:
        >>> linked_names(["__0_0.distcp", "sub/data"])
        {'__0_0.distcp': '__0_0.linked.distcp', 'sub/data': 'sub/data.linked.distcp'}
    """
    names: dict[str, str] = {}
    used: set[str] = set()
    for file in files:
        name = file if file.endswith(_LINKED) else file.removesuffix(".distcp") + _LINKED
        names[file] = unused_name(name, used)
        used.add(names[file])
    return names


def unused_name(name: str, used: Collection[str]) -> str:
    """Return ``name``, with a number before its suffix if it is taken."""
    stem, dot, suffix = name.partition(".")
    number, found = 0, name
    while found in used:
        number += 1
        found = f"{stem}-{number}{dot}{suffix}"
    return found
