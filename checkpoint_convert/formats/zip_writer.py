"""Write the zip archives of ``torch.save``, byte for byte laid out as torch 2.7 and later lay them out.

Every record is stored, its bytes start at a multiple of 64, and its checksum follows it. Sizes are
known beforehand, so the length of an archive is too, and the bytes of a tensor can be streamed into it.
"""

from __future__ import annotations

import functools
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from isal.isal_zlib import crc32

from fsdp_migrate.checkpoint_convert.manifest.boxes import Shape, row_major_strides
from fsdp_migrate.checkpoint_convert.manifest.dtypes import DTYPES


if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


_FLAGS: Final = 0x0808  # the checksum follows the record; names are UTF-8
_ALIGNMENT: Final = 64
_LIMIT32: Final = 0xFFFFFFFF
_PREFIX: Final = "archive/"
# The first two came with torch 2.7; older ones read records by name, and never ask for these.
FIXED_RECORDS: Final = {
    ".format_version": b"1",
    ".storage_alignment": b"64",
    "byteorder": b"little",
}
_VERSION: Final = b"3\n"
_SERIALIZATION_ID: Final = ".data/serialization_id"


@dataclass(frozen=True)
class _Record:
    name: bytes
    size: int
    header: int
    data: int

    @property
    def end(self) -> int:
        # Behind it a mark, the checksum, and two sizes: of 4 bytes each, or from 4 GiB on of 8.
        return self.data + self.size + (24 if self.is_wide else 16)

    @property
    def is_wide(self) -> bool:
        return self.size >= _LIMIT32


@dataclass(frozen=True)
class TensorArchive:
    """The archive of one tensor: ``head``, then the tensor's bytes, then ``tail(crc)``; ``length`` in all."""

    head: bytes
    payload: int
    length: int
    _records: tuple[_Record, ...]
    _contents: tuple[bytes, ...]

    @property
    def start(self) -> int:
        """Return where the tensor's bytes start."""
        return len(self.head)

    def tail(self, crc: int) -> bytes:
        """Return what follows the tensor's bytes, whose checksum is ``crc``."""
        parts: list[bytes] = []
        crcs: list[int] = []
        for record, content in zip(self._records, self._contents, strict=True):
            is_payload = record.data == self.start
            record_crc = crc if is_payload else crc32(content)
            crcs.append(record_crc)
            if record.data > self.start:
                parts += [_header(record), content]
            if record.data >= self.start:
                parts.append(_descriptor(record, record_crc))
        parts.append(_directory(self._records, crcs))
        return b"".join(parts)


@functools.lru_cache(maxsize=4096)
def tensor_archive(dtype: str, shape: Shape) -> TensorArchive:
    """Lay out the archive of a contiguous tensor.

    Example:
        >>> archive = tensor_archive("float32", (3,))
        >>> archive.payload, archive.length
        (12, 1577)
    """
    kind = DTYPES[dtype]
    count = 1
    for size in shape:
        count *= size
    payload = count * kind.itemsize
    pickled = _tensor_pickle(dtype, shape, count)
    names = ["data.pkl", *FIXED_RECORDS, "data/0", "version", _SERIALIZATION_ID]
    contents = [pickled, *FIXED_RECORDS.values(), b"", _VERSION, _identity(names, pickled)]
    sizes = [payload if name == "data/0" else len(c) for name, c in zip(names, contents, strict=True)]
    records = _lay_out(names, sizes)
    head: list[bytes] = []
    for record, name, content in zip(records, names, contents, strict=True):
        head.append(_header(record))
        if name == "data/0":
            break
        head += [content, _descriptor(record, crc32(content))]
    # No checksum changes a length: so every item has its place before a byte of a tensor is read.
    length = records[-1].end + len(_directory(records, [0] * len(records)))
    return TensorArchive(b"".join(head), payload, length, tuple(records), tuple(contents))


def are_records_of_ours(names: Collection[str]) -> bool:
    """Tell whether :func:`lay_out_archive` wrote an archive: torch ends each with a number of its own.

    Example:
        >>> are_records_of_ours(["archive/data.pkl", "archive/.format_version"])
        True
    """
    known = {name.partition("/")[2] for name in names}
    return ".format_version" in known and _SERIALIZATION_ID not in known


def small_archive(contents: Mapping[str, bytes]) -> bytes:
    """Build the archive of records that are in memory, in their order."""
    parts, end = lay_out_archive(contents)
    return b"".join(part for part in parts if isinstance(part, bytes)) + end.directory(())


@dataclass(frozen=True)
class StreamedRecord:
    """A record of an archive whose bytes come later: ``head``, the bytes, then ``tail(crc)``."""

    head: bytes
    _record: _Record

    @property
    def payload(self) -> int:
        """Return how many bytes come."""
        return self._record.size

    @property
    def length(self) -> int:
        """Return its size with what stands before and after the bytes."""
        return self._record.end - self._record.header

    def tail(self, crc: int) -> bytes:
        """Return what follows the bytes, whose checksum is ``crc``."""
        return _descriptor(self._record, crc)


@dataclass(frozen=True)
class ArchiveEnd:
    """What an archive ends with: the directory of its records."""

    _records: tuple[_Record, ...]
    _crcs: tuple[int | None, ...]

    @property
    def length(self) -> int:
        """Return its size."""
        return len(_directory(self._records, [0] * len(self._records)))

    def directory(self, crcs: Sequence[int]) -> bytes:
        """Return it, with the checksums of the streamed records in their order."""
        streamed = iter(crcs)
        return _directory(self._records, [next(streamed) if crc is None else crc for crc in self._crcs])


def lay_out_archive(contents: Mapping[str, bytes | int]) -> tuple[list[bytes | StreamedRecord], ArchiveEnd]:
    """Lay out an archive of records that are in memory, or of which only the size is known.

    Example:
        >>> parts, end = lay_out_archive({"data.pkl": b"N.", "data/0": 8})
        >>> [type(part).__name__ for part in parts], parts[1].payload, end.length > 0
        (['bytes', 'StreamedRecord'], 8, True)
    """
    sizes = [content if isinstance(content, int) else len(content) for content in contents.values()]
    records = _lay_out(list(contents), sizes)
    parts: list[bytes | StreamedRecord] = []
    crcs: list[int | None] = []
    for record, content in zip(records, contents.values(), strict=True):
        if isinstance(content, int):
            crcs.append(None)
            parts.append(StreamedRecord(_header(record), record))
        else:
            crc = crc32(content)
            crcs.append(crc)
            parts.append(_header(record) + content + _descriptor(record, crc))
    return parts, ArchiveEnd(tuple(records), tuple(crcs))


def _lay_out(names: Sequence[str], sizes: Sequence[int]) -> list[_Record]:
    records: list[_Record] = []
    at = 0
    for name, size in zip(names, sizes, strict=True):
        encoded = (_PREFIX + name).encode()
        # 30 bytes of header, the name, and the head of the field that pads up to the next multiple of 64.
        data = at + 30 + len(encoded) + 4
        data += -data % _ALIGNMENT
        records.append(_Record(encoded, size, at, data))
        at = records[-1].end
    return records


def _header(record: _Record) -> bytes:
    # Zeros for checksum and sizes: by the flag 0x08 they stand in the descriptor behind the record.
    padding = record.data - record.header - 30 - len(record.name) - 4
    header = struct.pack(
        "<4s5H3I2H", b"PK\x03\x04", 0, _FLAGS, 0, 0, 0, 0, 0, 0, len(record.name), padding + 4
    )
    return header + record.name + struct.pack("<2sH", b"FB", padding) + b"Z" * padding


def _descriptor(record: _Record, crc: int) -> bytes:
    sizes = struct.pack("<2Q" if record.is_wide else "<2I", record.size, record.size)
    return b"PK\x07\x08" + struct.pack("<I", crc) + sizes


def _directory(records: Sequence[_Record], crcs: Sequence[int]) -> bytes:
    entries = b"".join(map(_entry, records, crcs))
    start, size, count = records[-1].end, len(entries), len(records)
    # torch asks miniz for 64-bit records whatever the sizes. 44 is the length of what follows in it, 0x031E
    # and 0x2D are the versions that miniz writes: made by 3.0 on Unix, 4.5 needed.
    end64 = struct.pack("<4sQ2H2I4Q", b"PK\x06\x06", 44, 0x031E, 0x2D, 0, 0, count, count, size, start)
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, start + size, 1)
    end = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, count, count, size, min(start, _LIMIT32), 0)
    return entries + end64 + locator + end


def _entry(record: _Record, crc: int) -> bytes:
    # Of the 64-bit values only those stand there that do not fit, in this order.
    wide = [n for n in (record.size, record.size, record.header) if n >= _LIMIT32]
    extra = struct.pack(f"<2H{len(wide)}Q", 1, 8 * len(wide), *wide) if wide else b""
    size = min(record.size, _LIMIT32)
    fields = (0, 0, _FLAGS, 0, 0, 0, crc, size, size, len(record.name), len(extra), 0, 0, 0, 0)
    header = min(record.header, _LIMIT32)
    return struct.pack("<4s6H3I5H2I", b"PK\x01\x02", *fields, header) + record.name + extra


def _identity(names: Sequence[str], pickled: bytes) -> bytes:
    """Return the 40 digits that torch calls the serialization id: of the names, and of the contents."""
    return b"%020d%020d" % (crc32("".join(names).encode()), crc32(pickled))


def _tensor_pickle(dtype: str, shape: Shape, count: int) -> bytes:
    """Pickle a contiguous tensor as torch.save does, with its storage as the persistent id ``0``."""
    kind = DTYPES[dtype]
    rebuild = "_rebuild_tensor_v2" if kind.storage else "_rebuild_tensor_v3"
    storage = f"torch\n{kind.storage}" if kind.storage else "torch.storage\nUntypedStorage"
    # Untyped storages count bytes, typed ones elements. torch has no typed storage for its newer types.
    numel = count if kind.storage else count * kind.itemsize
    parts = [
        b"\x80\x02",
        f"ctorch._utils\n{rebuild}\n".encode(),
        b"((" + _text("storage"),
        f"c{storage}\n".encode(),
        _text("0") + _text("cpu") + _int(numel) + b"tQ",
        _int(0) + _ints(shape) + _ints(row_major_strides(shape)),
        b"\x89ccollections\nOrderedDict\n)R",
        b"" if kind.storage else f"ctorch\n{dtype}\n".encode(),
        b"tR.",
    ]
    return b"".join(parts)


def _text(text: str) -> bytes:
    return b"X" + struct.pack("<I", len(text.encode())) + text.encode()


def _int(number: int) -> bytes:
    if number < 1 << 8:
        return b"K" + struct.pack("<B", number)
    if number < 1 << 16:
        return b"M" + struct.pack("<H", number)
    if number < 1 << 31:
        return b"J" + struct.pack("<i", number)
    data = number.to_bytes(number.bit_length() // 8 + 1, "little")
    return b"\x8a" + struct.pack("<B", len(data)) + data


def _ints(numbers: Sequence[int]) -> bytes:
    return b"(" + b"".join(map(_int, numbers)) + b"t"
