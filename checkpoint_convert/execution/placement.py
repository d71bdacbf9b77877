"""Which item of the output lies where: files, offsets and lengths, before a byte is written. Pure."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from fsdp_migrate.checkpoint_convert.formats.safetensors_writer import place_files, write_index
from fsdp_migrate.checkpoint_convert.formats.zip_writer import (
    ArchiveEnd,
    StreamedRecord,
    TensorArchive,
    lay_out_archive,
    tensor_archive,
)
from fsdp_migrate.checkpoint_convert.manifest.manifest import BytesEntry, Chunk, Entry, Stored, TensorEntry
from fsdp_migrate.checkpoint_convert.manifest.planned import PlannedTensor, PlannedValue


if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from fsdp_migrate.checkpoint_convert.manifest.boxes import Box
    from fsdp_migrate.checkpoint_convert.planning.plan import ConversionPlan


# What changes in a relinked checkpoint gets a file of its own: the linked ones are the source's, too.
_NAMES_FILE: Final = "__names_0.distcp"
_COPY_BYTES: Final = 64 << 20
_LINKED: Final = ".linked.distcp"


@dataclass(frozen=True, slots=True)
class CopyItem:
    """Bytes that are taken over as they are.

    Attributes:
        source: Where they lie.
        length: How many they are.
        kind: ``"item"`` is a whole archive of torch.save. ``"part"`` is a part of a file of the user's, which
            may be such an archive; ``"bytes"`` is nothing of which anything is known.
        file_size: How large the file of the user's is.
    """

    source: Stored
    length: int
    kind: Literal["item", "part", "bytes"] = "item"
    file_size: int = 0


def copy_items(file: str, nbytes: int, stored: Iterable[Stored] | None = None) -> list[Item]:
    """Return the items that copy a whole file; more than one where it is long, so that ranks can share it.

    Args:
        file: The file.
        nbytes: Its size.
        stored: The archives in it; None for a file of the user's.
    """
    kind: Literal["part", "bytes"] = "part" if stored is None else "bytes"
    found: list[Item] = []
    at = 0
    # Items by themselves, so that their checksums are compared on the way; what stands between them is copied
    # as bytes. Of two that overlap (tied tensors) the longer one has both.
    for item in sorted(set(stored or ()), key=lambda s: (s.offset, -s.length)):
        if item.offset >= at:
            found += [*_pieces(file, at, item.offset, nbytes, kind), CopyItem(item, item.length)]
            at = item.offset + item.length
    found += _pieces(file, at, nbytes, nbytes, kind)
    return found or [CopyItem(Stored(file, 0, 0), 0, "bytes")]


def _pieces(
    file: str, start: int, end: int, file_size: int, kind: Literal["part", "bytes"]
) -> Iterator[CopyItem]:
    for at in range(start, end, _COPY_BYTES):
        length = min(_COPY_BYTES, end - at)
        yield CopyItem(Stored(file, at, length), length, kind, file_size)


@dataclass(frozen=True, slots=True)
class DataItem:
    """An item whose bytes are in memory."""

    data: bytes

    @property
    def length(self) -> int:
        """Return its size."""
        return len(self.data)


@dataclass(frozen=True, slots=True)
class RawArchive:
    """No archive: the bytes of a tensor, with nothing before or after them."""

    payload: int
    head: bytes = b""

    @property
    def length(self) -> int:
        """Return the size of the bytes."""
        return self.payload

    def tail(self, crc: int) -> bytes:
        """Return what follows the bytes."""
        del crc
        return b""


@dataclass(frozen=True, slots=True)
class TensorItem:
    """A box of a tensor that is put together anew."""

    tensor: PlannedTensor
    box: Box
    archive: TensorArchive | RawArchive | StreamedRecord

    @property
    def length(self) -> int:
        """Return its size."""
        return self.archive.length


@dataclass(frozen=True, slots=True)
class EndItem:
    """What a file of torch.save ends with: it tells the checksums of the tensors before it."""

    end: ArchiveEnd

    @property
    def length(self) -> int:
        """Return its size."""
        return self.end.length


Item = CopyItem | DataItem | TensorItem | EndItem


@dataclass(frozen=True, slots=True)
class Placement:
    """What an output consists of.

    Attributes:
        taken: Data files of the source that are linked or copied whole, with their new names.
        files: Data files that are written: their items, in order.
        volumes: What the metadata of each folder says, in which files are named from that folder on. "" is
            the output itself.
        index: What is written as the index of safetensors files, if there is one.
    """

    taken: Mapping[str, str]
    files: Mapping[str, Sequence[Item]]
    volumes: Mapping[str, tuple[Entry, ...]]
    index: bytes | None = None

    @property
    def nbytes(self) -> int:
        """Return the bytes that are written."""
        return sum(item.length for items in self.files.values() for item in items)


ValueKey = tuple[str, str]
"""A folder of the output, and the key of a value in it."""

FileRecords = Mapping[str, "bytes | PlannedTensor"]
"""The records of a file of torch.save by name: their bytes, or the tensor that is streamed into it."""


class NewValues(NamedTuple):
    """What is made in memory: the new bytes of items whose content changes, and the files beside the data."""

    values: Mapping[ValueKey, bytes]
    files: Mapping[str, FileRecords]


def place(plan: ConversionPlan, new: NewValues) -> Placement:
    """Lay an output out.

    Args:
        plan: The conversion.
        new: What changes.
    """
    if not plan.is_distributed:
        return _place_safetensors(plan)
    return _Placer(plan, new).place()


def _archive_items(records: FileRecords) -> Iterator[Item]:
    """Yield the items of a file of torch.save."""
    tensors = {name: record for name, record in records.items() if isinstance(record, PlannedTensor)}
    contents = {
        name: record.nbytes if isinstance(record, PlannedTensor) else record
        for name, record in records.items()
    }
    parts, end = lay_out_archive(contents)
    for name, part in zip(contents, parts, strict=True):
        if isinstance(part, bytes):
            yield DataItem(part)
        else:
            tensor = tensors[name]
            yield TensorItem(tensor, tensor.boxes[0], part)
    yield EndItem(end)


def _place_safetensors(plan: ConversionPlan) -> Placement:
    files: dict[str, list[Item]] = {}
    placed = place_files(plan.tensors, plan.max_shard_size)
    for name, (header, tensors) in placed.items():
        files[name] = [DataItem(header)]
        for tensor in tensors:
            shape = tensor.source.shape
            archive = RawArchive(tensor.nbytes)
            files[name].append(TensorItem(tensor, ((0,) * len(shape), shape), archive))
    index = write_index({name: tensors for name, (_, tensors) in placed.items()}) if len(placed) > 1 else None
    return Placement({}, files, {}, index)


class _Placer:
    def __init__(self, plan: ConversionPlan, new: NewValues) -> None:
        self._plan = plan
        self._values = new.values
        self._records = new.files
        self._files: defaultdict[str, list[Item]] = defaultdict(list)
        self._ends: defaultdict[str, int] = defaultdict(int)
        self._shares = plan.action != "rewrite"
        self._taken = linked_names(*_shared_files(plan)) if self._shares else {}
        self._last: tuple[PlannedTensor, dict[Box, Stored]] | None = None
        self._queues: dict[str, list[tuple[int, int]]] = {}
        # What a map joined has other boxes, and so no rank's file of the source to stay in.
        self._joined = plan.manifest.mapped.joined if plan.manifest.mapped is not None else {}
        # Values under several names are written again: no two names may have the same bytes of a file.
        self._named: set[Stored] = set()

    @property
    def _stays(self) -> bool:
        manifest = self._plan.manifest
        is_named = manifest.is_relinkable and not manifest.places and self._plan.world_size is None
        return self._shares or is_named

    def place(self) -> Placement:
        chunks: dict[ValueKey, list[Chunk]] = {}
        singles: list[PlannedTensor | PlannedValue] = []
        for entry in self._plan.entries:
            at = entry.folder, entry.key
            # First what belongs into the file of a rank; then the rest, each into the smallest file so far:
            # files come out about equally large.
            if isinstance(entry, PlannedTensor) and self._stays and entry.source.key not in self._joined:
                chunks[at] = self._as_stored(entry)
            elif isinstance(entry, PlannedTensor) and len(entry.boxes) > 1:
                chunks[at] = [
                    Chunk(*box, self._append(entry.folder, _rank_file(rank), self._item(entry, box)))
                    for rank, box in enumerate(entry.boxes)
                ]
            else:
                singles.append(entry)
        stored: dict[ValueKey, Stored] = {}
        for entry in singles:
            at = entry.folder, entry.key
            if isinstance(entry, PlannedValue):
                stored[at] = self._value(entry)
            else:
                item = self._item(entry, entry.boxes[0])
                chunks[at] = [Chunk(*entry.boxes[0], self._append_anywhere(entry.folder, item))]
        volumes: defaultdict[str, list[Entry]] = defaultdict(list)
        for entry in self._plan.entries:
            at = entry.folder, entry.key
            volumes[entry.folder].append(
                _tensor_entry(entry, chunks[at])
                if isinstance(entry, PlannedTensor)
                else BytesEntry(entry.key, entry.path, stored[at])
            )
        for file in self._plan.files:
            self._files[file.name] += _archive_items(self._records[file.name])
        return Placement(self._taken, self._files, {name: tuple(found) for name, found in volumes.items()})

    def _as_stored(self, entry: PlannedTensor) -> list[Chunk]:
        """Leave chunks in the files in which they are; in linked files they do not even move."""
        if self._shares:
            pairs = zip(entry.source.chunks, entry.boxes, strict=True)
            return [Chunk(*box, self._shared(entry.folder, chunk.stored)) for chunk, box in pairs]
        placed: list[Chunk] = []
        for chunk, box in zip(entry.source.chunks, entry.boxes, strict=True):
            name = _written_name(chunk.stored.file, entry.folder)
            placed.append(Chunk(*box, self._append(entry.folder, name, self._item(entry, box))))
        return placed

    def _shared(self, folder: str, stored: Stored) -> Stored:
        name = self._taken[stored.file]
        return Stored(
            name.removeprefix(f"{folder}/") if folder else name, stored.offset, stored.length, stored.raw
        )

    def _value(self, entry: PlannedValue) -> Stored:
        source, folder = entry.source, entry.folder
        new = self._values.get((folder, entry.key))
        if self._shares and new is None and source.stored not in self._named:
            self._named.add(source.stored)
            return self._shared(folder, source.stored)
        item: Item = CopyItem(source.stored, source.stored.length) if new is None else DataItem(new)
        if self._shares:
            taken = [name.removeprefix(f"{folder}/") for name in self._taken.values()]
            return self._append(folder, unused_name(_NAMES_FILE, taken), item)
        if self._stays:
            return self._append(folder, _written_name(source.stored.file, folder), item)
        return self._append_anywhere(folder, item)

    def _item(self, entry: PlannedTensor, box: Box) -> Item:
        # A chunk that stays as it is is copied with its archive and its checksum, not taken apart.
        stored = None if entry.is_cast else self._whole_chunks(entry).get(box)
        if stored is not None:
            return CopyItem(stored, stored.length)
        return TensorItem(entry, box, tensor_archive(entry.dtype, box[1]))

    def _whole_chunks(self, entry: PlannedTensor) -> dict[Box, Stored]:
        """Return the items of the source by their boxes; kept, because boxes of a tensor come in a row."""
        if self._last is None or self._last[0] is not entry:
            # Elements in a file of torch.save, and views of an item, are no archives that can be copied.
            items = [c for c in entry.source.chunks if c.stored.raw is None and c.stored.view is None]
            self._last = (entry, {(c.offsets, c.sizes): c.stored for c in items})
        return self._last[1]

    def _append(self, folder: str, name: str, item: Item) -> Stored:
        """Append an item to a file, and return where it lies, seen from the folder."""
        file = f"{folder}/{name}" if folder else name
        stored = Stored(name, self._ends[file], item.length)
        self._files[file].append(item)
        self._ends[file] += item.length
        return stored

    def _append_anywhere(self, folder: str, item: Item) -> Stored:
        """Append to the file of the rank that has the least so far."""
        if folder not in self._queues:
            start = f"{folder}/" if folder else ""
            ranks = range(self._plan.world_size or 1)
            self._queues[folder] = [(self._ends.get(start + _rank_file(rank), 0), rank) for rank in ranks]
            heapq.heapify(self._queues[folder])
        _, rank = self._queues[folder][0]
        stored = self._append(folder, _rank_file(rank), item)
        heapq.heapreplace(self._queues[folder], (stored.offset + stored.length, rank))
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


def _shared_files(plan: ConversionPlan) -> tuple[list[str], dict[str, str]]:
    """Return the data files of the source that are shared, and the folder into which each of them goes."""
    folders: dict[str, str] = {}
    for entry in plan.entries:
        if isinstance(entry, PlannedTensor) or not entry.is_new:
            folders.update((stored.file, entry.folder) for stored in entry.source.items)
    return [file for file in plan.manifest.files if file in folders], folders


def own_name(file: str, folder: str) -> str:
    """Return the name of a data file of the source in a folder of the output, seen from there.

    Example:
        >>> own_name("optimizer_0/__0_0.distcp", "optimizer_0"), own_name("optimizer_0/__0_0.distcp", "")
        ('__0_0.distcp', 'optimizer_0-__0_0.distcp')
        >>> own_name("model/__0_0.distcp", "pytorch_model_fsdp_0")
        'model-__0_0.distcp'
    """
    return file.removeprefix(f"{folder}/").replace("/", "-")


def _written_name(file: str, folder: str) -> str:
    """Return the name of a file that takes the place of one of the source, and shares nothing with it."""
    name = own_name(file, folder)
    return name.removesuffix(_LINKED) + ".distcp" if name.endswith(_LINKED) else name


def linked_names(files: Collection[str], folders: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the names under which data files of the source stand in an output that shares their bytes.

    They are not the names that torch gives to data files. If a run saves into the output later, torch opens
    ``__0_0.distcp`` for writing as it is, and with a hard link of that name the source would be gone.

    Args:
        files: The data files.
        folders: The folder of the output for each that does not go into the output itself.

    Example:
        >>> linked_names(["__0_0.distcp", "sub/data"])
        {'__0_0.distcp': '__0_0.linked.distcp', 'sub/data': 'sub-data.linked.distcp'}
    """
    names: dict[str, str] = {}
    used: set[str] = set()
    for file in files:
        folder = (folders or {}).get(file, "")
        own = own_name(file, folder)
        name = own if own.endswith(_LINKED) else own.removesuffix(".distcp") + _LINKED
        names[file] = unused_name(f"{folder}/{name}" if folder else name, used)
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
