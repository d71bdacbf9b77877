"""Write ``.metadata`` as torch would pickle it, without torch, in a form that torch 2.6 to 2.15 all read.

The pickle is put together from prepared pieces: objects of the same class differ in a few numbers only, and a
million chunks are then a matter of seconds. What torch 2.13 loads from it equals what it would have written.
"""

from __future__ import annotations

import hashlib
import struct
import uuid
from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.formats.pickle_reader import paused_gc
from fsdp_migrate.checkpoint_convert.manifest.manifest import Chunk, Entry, Stored, TensorEntry


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from fsdp_migrate.checkpoint_convert.manifest.boxes import Box, Shape
    from fsdp_migrate.checkpoint_convert.manifest.keys import Path


_FRAME: Final = 64 << 10
_MAX_KEPT: Final = 1 << 16
# What torch has written from 2.9 on (`Metadata.version`).
_VERSION: Final = "1.0.0"
_METADATA: Final = "torch.distributed.checkpoint.metadata"
_FILESYSTEM: Final = "torch.distributed.checkpoint.filesystem"


def write_metadata(entries: Sequence[Entry], *, checkpoint_id: str) -> bytes:
    """Return the bytes of a ``.metadata`` for entries whose chunks lie where their ``stored`` says.

    Args:
        entries: What the checkpoint holds.
        checkpoint_id: Where it is going to lie; recorded, and of no consequence.
    """
    with paused_gc():
        pickler = _MetadataPickler()
        pieces = list(pickler.metadata(entries, checkpoint_id))
    return b"\x80\x04" + b"".join(_framed(pieces)) + b"."


def _framed(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Group whole opcodes into the frames of protocol 4, which let a reader fetch them in one go."""
    block: list[bytes] = []
    size = 0
    for piece in pieces:
        block.append(piece)
        size += len(piece)
        if size >= _FRAME:
            yield b"\x95" + struct.pack("<Q", size) + b"".join(block)
            block, size = [], 0
    # One more: STOP, which `write_metadata` appends, is in the last frame.
    yield b"\x95" + struct.pack("<Q", size + 1) + b"".join(block)


class _MetadataPickler:
    """Emits opcodes. Text and classes that come again are kept in the pickle's memo.

    The memo numbers things in the order in which they are emitted, so pieces are made in the order in
    which they stand.
    """

    def __init__(self) -> None:
        self._memo: dict[object, bytes] = {}
        self._shapes: dict[Shape, bytes] = {}
        self._chunks: dict[Box, bytes] = {}

    def start(self) -> bytes:
        return self._object(_METADATA, "Metadata") + b"}("

    def metadata(self, entries: Sequence[Entry], checkpoint_id: str) -> Iterator[bytes]:
        digest = hashlib.sha256(checkpoint_id.encode("utf-8", "surrogatepass"))
        yield self.start()
        yield self._text("state_dict_metadata") + b"}("
        for entry in entries:
            piece = self._text(entry.key) + self._kind(entry)
            digest.update(piece)
            yield piece
        yield b"u" + self._text("planner_data")
        yield from self._planner_data(entries)
        yield self._text("storage_data") + b"}("
        for entry in entries:
            yield from self._storage(entry)
        yield b"u" + self._text("storage_meta") + self._storage_meta(checkpoint_id, digest.digest())
        yield self._text("version") + self._text(_VERSION) + b"ub"

    def _planner_data(self, entries: Sequence[Entry]) -> Iterator[bytes]:
        with_paths = [entry for entry in entries if entry.path is not None]
        if not with_paths:
            yield b"N"
            return
        yield b"}("
        for entry in with_paths:
            yield self._text(entry.key) + self._path(entry.path or ())
        yield b"u"

    def _path(self, path: Path) -> bytes:
        names = [self._text(name) if isinstance(name, str) else _int(name) for name in path]
        return b"(" + b"".join(names) + b"t"

    def _kind(self, entry: Entry) -> bytes:
        if not isinstance(entry, TensorEntry):
            return self._object(_METADATA, "BytesStorageMetadata")
        parts = [
            self._object(_METADATA, "TensorStorageMetadata"),
            b"}(" + self._text("properties") + self._properties(entry),
            self._text("size") + self._shape(entry.shape),
            self._text("chunks") + b"](",
            *(self._chunk(chunk) for chunk in entry.chunks),
            b"eub",
        ]
        return b"".join(parts)

    def _properties(self, entry: TensorEntry) -> bytes:
        key = (entry.dtype, entry.requires_grad, entry.memory_format)
        start = self._object(_METADATA, "TensorProperties")
        if key in self._memo:
            return start + self._memo[key] + b"b"
        state = [
            b"(" + self._global("torch", entry.dtype),
            self._global("torch.serialization", "_get_layout"),
            self._text("torch.strided") + b"\x85R",
            _bool(entry.requires_grad),
            self._global(_METADATA, "_MEM_FORMAT_ENCODING"),
            _int(entry.memory_format) + b"\x85R",
            b"\x89t",  # pin_memory. torch 2.15 has a sixth field and reads five; the others read only five.
        ]
        return start + self._keep(key, b"".join(state)) + b"b"

    def _chunk(self, chunk: Chunk) -> bytes:
        known = self._chunks.get((chunk.offsets, chunk.sizes))
        if known is not None:
            return known
        before = len(self._memo)
        made = b"".join(
            (
                self._object(_METADATA, "ChunkStorageMetadata"),
                b"}(",
                self._text("offsets"),
                self._shape(chunk.offsets),
                self._text("sizes"),
                self._shape(chunk.sizes),
                b"ub",
            )
        )
        # Only what has no MEMOIZE in it may be repeated.
        if len(self._memo) == before and len(self._chunks) < _MAX_KEPT:
            self._chunks[chunk.offsets, chunk.sizes] = made
        return made

    def _storage(self, entry: Entry) -> Iterator[bytes]:
        if not isinstance(entry, TensorEntry):
            yield self._index(entry.key, None, None) + self._stored(entry.stored)
            return
        if not entry.chunks:
            return
        first, *_ = entry.chunks
        yield self._index(entry.key, first.offsets, 0) + self._stored(first.stored)
        yield b"".join(self._further(entry))

    def _further(self, entry: TensorEntry) -> Iterator[bytes]:
        """Yield what ``_storage`` does of each chunk but the first: by then all names are in the memo."""
        index = self._object(_METADATA, "MetadataIndex") + b"}(" + self._text("fqn") + self._text(entry.key)
        index += self._text("index")
        at = self._text("offset")
        stored = b"ub" + self._object(_FILESYSTEM, "_StorageInfo") + b"}(" + self._text("relative_path")
        length = self._text("length")
        shape, memo = self._shape, self._memo
        for number, chunk in enumerate(entry.chunks[1:], 1):
            item = chunk.stored
            name = memo.get(item.file) or self._text(item.file)
            head = index + _int(number) + at + shape(chunk.offsets) + stored
            yield head + name + at + _int(item.offset) + length + _int(item.length) + b"ub"

    def _index(self, key: str, offset: Shape | None, number: int | None) -> bytes:
        parts = [
            self._object(_METADATA, "MetadataIndex"),
            b"}(" + self._text("fqn") + self._text(key),
            self._text("index") + (b"N" if number is None else _int(number)),
        ]
        if offset is not None:
            parts.append(self._text("offset") + self._shape(offset))
        return b"".join(parts) + b"ub"

    def _stored(self, stored: Stored) -> bytes:
        return b"".join(
            (
                self._object(_FILESYSTEM, "_StorageInfo"),
                b"}(",
                self._text("relative_path"),
                self._text(stored.file),
                self._text("offset"),
                _int(stored.offset),
                self._text("length"),
                _int(stored.length),
                b"ub",
            )
        )

    def _storage_meta(self, checkpoint_id: str, digest: bytes) -> bytes:
        # Not a random number: the same conversion writes the same bytes.
        save_id = str(uuid.UUID(bytes=digest[:16], version=4))
        parts = [
            self._object(_METADATA, "StorageMeta") + b"}(",
            self._text("checkpoint_id") + self._text(checkpoint_id),
            self._text("save_id") + self._text(save_id),
            self._text("load_id") + b"N",
            # Without `modules` torch from 2.7 on makes a StorageMeta that cannot even be printed.
            self._text("modules") + b"]ub",
        ]
        return b"".join(parts)

    def _shape(self, shape: Shape) -> bytes:
        known = self._shapes.get(shape)
        if known is None:
            numbers = b"(" + b"".join(map(_int, shape)) + b"t"
            known = self._global("torch", "Size") + numbers + b"\x85R"
            # Only the form without a MEMOIZE in it may be repeated.
            self._shapes[shape] = self._global("torch", "Size") + numbers + b"\x85R"
        return known

    def _object(self, module: str, name: str) -> bytes:
        return self._global(module, name) + b")\x81"

    def _global(self, module: str, name: str) -> bytes:
        key = (module, name)
        known = self._memo.get(key)
        if known is not None:
            return known
        return self._keep(key, self._text(module) + self._text(name) + b"\x93")

    def _text(self, text: str) -> bytes:
        known = self._memo.get(text)
        if known is not None:
            return known
        data = text.encode("utf-8", "surrogatepass")
        if len(data) < 256:
            return self._keep(text, b"\x8c" + struct.pack("<B", len(data)) + data)
        return self._keep(text, b"X" + struct.pack("<I", len(data)) + data)

    def _keep(self, key: object, opcodes: bytes) -> bytes:
        """Emit ``opcodes`` and remember how to fetch what they made."""
        number = len(self._memo)
        self._memo[key] = (
            b"h" + struct.pack("<B", number) if number < 256 else b"j" + struct.pack("<I", number)
        )
        return opcodes + b"\x94"


def _bool(value: bool) -> bytes:
    return b"\x88" if value else b"\x89"


def _int(number: int) -> bytes:
    if 0 <= number < 1 << 8:
        return b"K" + struct.pack("<B", number)
    if 0 <= number < 1 << 16:
        return b"M" + struct.pack("<H", number)
    if -(1 << 31) <= number < 1 << 31:
        return b"J" + struct.pack("<i", number)
    data = number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + struct.pack("<B", len(data)) + data


METADATA_START: Final = _MetadataPickler().start()
"""How the pickle begins that is written here, behind the head of its frame; torch's has marks in between."""
