"""From the bytes of ``.metadata`` to entries: read without running it, and held against the files."""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from fsdp_migrate.checkpoint_convert.formats.dcp_values import (
    METADATA_GLOBALS,
    BytesRecord,
    ChunkRecord,
    DTypeName,
    IndexRecord,
    MetadataRecord,
    PropertiesRecord,
    StorageRecord,
    TensorRecord,
)
from fsdp_migrate.checkpoint_convert.formats.pickle_reader import StandIn, load_pickle, paused_gc, show
from fsdp_migrate.checkpoint_convert.manifest.boxes import Shape, tiling_problem
from fsdp_migrate.checkpoint_convert.manifest.dtypes import DTYPES
from fsdp_migrate.checkpoint_convert.manifest.keys import Path, join_path
from fsdp_migrate.checkpoint_convert.manifest.manifest import BytesEntry, Chunk, Entry, Stored, TensorEntry
from fsdp_migrate.errors import CheckpointFormatError
from fsdp_migrate.findings import counted, in_lines


if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


# torch allows 64. A pickle can hand the same long tuple to a million chunks.
_MAX_DIMENSIONS: Final = 64
_WHOLE: Final = frozenset({int})
_MAX_KEPT: Final = 1 << 16
_MAX_SHOWN: Final = 20
_DRIVE: Final = re.compile(r"^[A-Za-z]:")


@dataclass(frozen=True, slots=True)
class MetadataFile:
    """The readable content of one ``.metadata``."""

    entries: dict[str, Entry]
    version: str | None
    has_storage_meta: bool
    has_modules: bool
    property_sizes: frozenset[int]


def read_metadata(data: bytes, files: Mapping[str, int], *, where: str) -> MetadataFile:
    """Read a ``.metadata`` and check it against the sizes of the files beside it.

    Args:
        data: The bytes of the file.
        files: The size of every file of the checkpoint.
        where: The path of the file, for messages.

    Raises:
        UnsafePickleError: It asks for something that no ``.metadata`` needs. Nothing of it was executed.
        CheckpointFormatError: It is damaged, or does not fit the files. The message holds every problem.
    """
    with paused_gc():
        sizes = _Sizes()
        names = {**METADATA_GLOBALS, ("torch", "Size"): StandIn(sizes.keep)}
        record = load_pickle(data, names, where=repr(where))
        if not isinstance(record, MetadataRecord):
            msg = f"{where!r} is a pickle, but not of checkpoint metadata."
            raise CheckpointFormatError(msg, path=where)
        builder = _Builder(files, record, sizes.shapes())
        try:
            entries = builder.build()
        except AttributeError as error:  # an object that was made, and given no state
            msg = f"{where!r} is damaged: something in it lacks its fields ({error})."
            raise CheckpointFormatError(msg, path=where) from error
    if builder.problems:
        raise _too_many_problems(builder.problems, where)
    meta = record.storage_meta
    return MetadataFile(
        entries=entries,
        version=record.version if isinstance(record.version, str) else None,
        has_storage_meta=meta is not None,
        has_modules=meta is not None and meta.has_modules,
        property_sizes=frozenset(builder.property_sizes),
    )


_TOO_SHORT = "and its item has"


def _too_many_problems(problems: list[str], where: str) -> CheckpointFormatError:
    shown, count = in_lines(problems, _MAX_SHOWN), counted(len(problems), "problem")
    msg = (
        f"The checkpoint of {where!r} is damaged or incomplete ({count}):\n{shown}\n"
        "Copy it again from where it was saved, and see that every file is there."
    )
    if all(_TOO_SHORT in each and ".state." in each for each in problems):
        msg += (
            " If it was saved of an optimizer with state in few bits, such as torchao's AdamW8bit, it is "
            "whole: only `torch.distributed.checkpoint.load`, into such an optimizer, reads that."
        )
    return CheckpointFormatError(msg, path=where)


class _Sizes:
    """Keeps one of equal sizes while a pickle is loaded: a million chunks have a thousand different ones."""

    def __init__(self) -> None:
        self._known: dict[Shape, Shape] = {}

    def keep(self, value: object = ()) -> object:
        """Stand for ``torch.Size``: the tuple it was given, or an equal one that was given before."""
        if type(value) is not tuple:
            raise TypeError(f"torch.Size of a {type(value).__name__}")
        # Only few and whole numbers are compared: a pickle can hand the same long tuple over again and again.
        if len(value) > _MAX_DIMENSIONS or not _WHOLE.issuperset(map(type, value)):
            return value
        if len(self._known) >= _MAX_KEPT:
            return self._known.get(value, value)
        return self._known.setdefault(value, value)

    def shapes(self) -> Mapping[int, Shape]:
        """Return those that are shapes, by their identity."""
        return {id(value): value for value in self._known if _is_shape(value)}


@dataclass(slots=True)
class _Builder:
    """Turns the records into entries and collects every problem on the way.

    What there is a million of is looked at in as few steps as it takes to see that nothing is wrong; what is,
    is told by the methods that look closely.
    """

    files: Mapping[str, int]
    record: MetadataRecord
    shapes: Mapping[int, Shape]
    problems: list[str] = field(default_factory=list)
    property_sizes: set[int] = field(default_factory=set)

    def build(self) -> dict[str, Entry]:
        kinds, storage = self.record.state_dict_metadata, self.record.storage_data
        if not isinstance(kinds, dict) or not isinstance(storage, dict):
            self.problems.append("it lists no entries, or not where they are stored")
            return {}
        places = self._places(storage)
        if self.problems:
            return {}
        # Its items are taken over. A million of them are let go before as many chunks are made.
        storage.clear()
        paths = self._paths()
        entries: dict[str, Entry] = {}
        for key, kind in kinds.items():
            if not isinstance(key, str):
                self.problems.append(f"an entry is called {show(key)}, which is not text")
                continue
            entry = self._entry(key, kind, paths.get(key), places.pop(key, {}))
            if entry is not None:
                entries[key] = entry
        self.problems += [f"`{key}` has stored data, but is no entry" for key in places]
        self._check_overlaps(tuple(entries.values()))
        return entries

    def _places(self, storage: dict[Any, Any]) -> dict[str, dict[Shape | None, Stored]]:
        """Return the stored items by key and offsets, each checked against its file."""
        places: defaultdict[str, dict[Shape | None, Stored]] = defaultdict(dict)
        files, shapes = _FileCheck(self.files), self.shapes
        seen: set[str] = set()
        sizes: dict[str, int] = {}
        for index, info in storage.items():
            if not isinstance(index, IndexRecord) or not isinstance(index.fqn, str):
                self.problems.append("an item is stored under something else than a name")
                continue
            if not _is_inside(info, sizes):
                problem = files.problem(info)
                if problem is not None:
                    if problem not in seen:
                        self.problems.append(f"`{index.fqn}`: {problem}")
                    seen.add(problem)
                    continue
                sizes[info.relative_path] = self.files[info.relative_path]
            at = index.offset
            if id(at) not in shapes and at is not None and not _is_shape(at):
                self.problems.append(f"`{index.fqn}`: an item is stored at {show(at)}")
                continue
            of_key = places[index.fqn]
            if at in of_key:
                self.problems.append(f"`{index.fqn}`: two items are stored at {at}")
            of_key[at] = Stored(info.relative_path, info.offset, info.length)
        return dict(places)

    def _paths(self) -> dict[Any, Path]:
        planner = self.record.planner_data
        if not isinstance(planner, dict):
            return {}
        paths: dict[Any, Path] = {}
        for key, path in planner.items():
            # A path is no longer than its key, however often the pickle refers to a longer one.
            is_path = (
                isinstance(key, str)
                and isinstance(path, list | tuple)
                and len(path) <= len(key) + 1
                and all(type(p) in (str, int) for p in path)
            )
            # A planner of somebody's own may record something else; then the key alone counts.
            if is_path and join_path(tuple(path)) == key:
                paths[key] = tuple(path)
        return paths

    def _entry(
        self, key: str, kind: object, path: Path | None, places: dict[Shape | None, Stored]
    ) -> Entry | None:
        if isinstance(kind, BytesRecord):
            if len(places) != 1:
                self.problems.append(f"`{key}`: {len(places)} items are stored, expected 1")
                return None
            return BytesEntry(key, path, next(iter(places.values())))
        if not isinstance(kind, TensorRecord):
            self.problems.append(f"`{key}` is neither a tensor nor a value")
            return None
        problem = self._tensor_problem(kind)
        if problem is not None:
            self.problems.append(f"`{key}`: {problem}")
            return None
        return self._tensor(key, kind, path, places)

    def _tensor_problem(self, kind: TensorRecord) -> str | None:
        properties = kind.properties
        if not isinstance(properties, PropertiesRecord):
            return "its properties are missing"
        self.property_sizes.add(properties.state_size)
        if not isinstance(properties.dtype, DTypeName) or properties.dtype not in DTYPES:
            return f"its type is {show(properties.dtype)}, which is not known here"
        if properties.layout != "torch.strided":
            return f"its layout is {show(properties.layout)}, expected 'torch.strided'"
        if not _is_shape(kind.size):
            return f"its shape is {show(kind.size)}"
        if not isinstance(kind.chunks, list):
            return "its chunks are not a list"
        return None

    def _tensor(
        self,
        key: str,
        kind: TensorRecord,
        path: Path | None,
        places: dict[Shape | None, Stored],
    ) -> TensorEntry | None:
        itemsize = DTYPES[kind.properties.dtype].itemsize
        chunks: list[Chunk] = []
        needed: dict[int, int] = {}
        for chunk in kind.chunks:
            if not (isinstance(chunk, ChunkRecord) and self._is_box(chunk.offsets, chunk.sizes)):
                self.problems.append(f"`{key}`: a chunk has no offsets or sizes")
                return None
            offsets, sizes = chunk.offsets, chunk.sizes
            stored = places.pop(offsets, None)
            if stored is None:
                found = any(c.offsets == offsets for c in chunks)
                what = "is listed twice" if found else "has no stored data"
                self.problems.append(f"`{key}`: the chunk at {offsets} {what}")
                return None
            # By identity: `_Sizes` keeps one of equal sizes, and the record keeps it alive.
            nbytes = needed.get(id(sizes))
            if nbytes is None:
                nbytes = needed[id(sizes)] = math.prod(sizes) * itemsize
            if stored.length < nbytes:
                self.problems.append(
                    f"`{key}`: the chunk at {offsets} needs {nbytes} bytes, {_TOO_SHORT} {stored.length}"
                )
                return None
            chunks.append(Chunk(offsets, sizes, stored))
        if places:
            self.problems.append(f"`{key}`: data is stored at {next(iter(places))}, but no chunk is")
        problem = tiling_problem(kind.size, [(c.offsets, c.sizes) for c in chunks])
        if problem is not None:
            self.problems.append(f"`{key}` of shape {list(kind.size)}: {problem}")
            return None
        return TensorEntry(
            key=key,
            path=path,
            dtype=str(kind.properties.dtype),
            shape=kind.size,
            chunks=tuple(chunks),
            requires_grad=kind.properties.requires_grad is True,
            memory_format=_memory_format(kind.properties.memory_format),
        )

    def _is_box(self, offsets: object, sizes: object) -> bool:
        shapes = self.shapes
        return (id(offsets) in shapes or _is_shape(offsets)) and (id(sizes) in shapes or _is_shape(sizes))

    def _check_overlaps(self, entries: Collection[Entry]) -> None:
        """Check that no two items share bytes of a file."""
        ends: dict[str, int] = {}
        mixed: set[str] = set()
        for entry in entries:
            for stored in entry.items:
                if stored.offset < ends.get(stored.file, 0):
                    mixed.add(stored.file)
                ends[stored.file] = stored.offset + stored.length
        # Where they do not follow each other as they are listed, they are put in their order.
        items = [(s, e.key) for e in entries if mixed for s in e.items if s.file in mixed]
        items.sort()
        for (one, key), (other, other_key) in itertools.pairwise(items):
            if one.file == other.file and one.offset + one.length > other.offset:
                self.problems.append(
                    f"`{key}` and `{other_key}` share bytes of {one.file!r}: {one.length} at "
                    f"{one.offset}, and {other.length} at {other.offset}"
                )


def _is_inside(info: object, sizes: Mapping[str, int]) -> bool:
    """Tell whether a place is in a file whose name is known to be right; where it is not, look closer."""
    return (
        type(info) is StorageRecord
        and not info.transform_descriptors
        and type(info.relative_path) is str
        and type(info.offset) is int
        and type(info.length) is int
        and 0 <= info.offset <= info.offset + info.length <= sizes.get(info.relative_path, -1)
    )


def _memory_format(value: object) -> int:
    return value if type(value) is int else 0


def _is_shape(value: object) -> bool:
    return (
        type(value) is tuple
        and len(value) <= _MAX_DIMENSIONS
        and all(type(n) is int and 0 <= n < 1 << 63 for n in value)
    )


def _transforms(value: object) -> str:
    return show(tuple(value[:16]) if isinstance(value, list) else value)


class _FileCheck:
    """Checks where items say they lie; each file name is checked once."""

    def __init__(self, files: Mapping[str, int]) -> None:
        self._files = files
        self._names: dict[object, str | None] = {}

    def problem(self, info: object) -> str | None:
        if not isinstance(info, StorageRecord):
            return "where it is stored is not described as torch does it"
        if info.transform_descriptors:
            return (
                f"its data went through {_transforms(info.transform_descriptors)} when it was saved. Only "
                "checkpoints without such transforms can be read"
            )
        name = info.relative_path
        if not isinstance(name, str):
            return "its file has no name"
        if name not in self._names:
            self._names[name] = self._name_problem(name)
        problem = self._names[name]
        if problem is not None:
            return problem
        offset, length = info.offset, info.length
        if type(offset) is not int or type(length) is not int or offset < 0 or length < 0:
            return f"its place in {name!r} is {show(offset)}, {show(length)}"
        if offset + length > self._files[name]:
            return (
                f"its item ends at byte {offset + length} of {name!r}, which has {self._files[name]}. The "
                "file was cut off"
            )
        return None

    def _name_problem(self, name: str) -> str | None:
        parts = name.split("/")
        if name.startswith(("/", "\\")) or _DRIVE.match(name) or ".." in parts or "\0" in name:
            return f"its file {name!r} lies outside the checkpoint, so it is not opened"
        if name not in self._files:
            return f"its file {name!r} is missing"
        return None
