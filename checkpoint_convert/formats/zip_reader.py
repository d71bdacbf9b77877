"""Read the zip archives that ``torch.save`` writes, by ranges, without unpacking them.

Every item of a ``.distcp`` file is such an archive: records stored uncompressed under one folder name, among
them ``data.pkl`` and, per tensor, ``data/<number>``. Every size and position is held against the item before
it is used.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from isal.isal_zlib import crc32

from fsdp_migrate.errors import CheckpointFormatError, UnsupportedFeatureError


_LOCAL: Final = struct.Struct("<4s5H3I2H")
_CENTRAL: Final = struct.Struct("<4s6H3I5H2I")
_END: Final = struct.Struct("<4s4H2IH")
_END64_LOCATOR: Final = struct.Struct("<4sIQI")
_END64: Final = struct.Struct("<4sQ2H2I4Q")
_MAX32: Final = 0xFFFFFFFF
_FOLDER: Final = 0x10
_TAIL: Final = 4096
_WHOLE: Final = 64 << 10
_BLOCK: Final = 8 << 20
_MAX_DIRECTORY: Final = 256 << 20

MAX_RECORD: Final = 256 << 20
"""The most that is read of an archive into memory at once."""

Read = Callable[[int, int], bytes]
"""Return ``length`` bytes from ``offset``; the arguments come in this order."""


@dataclass(frozen=True)
class ZipRecord:
    """One stored record: where its local header stands in the item, its size and its checksum.

    ``full_name`` is its name with the archive's own in front. ``shared`` is what its local header says again:
    the version that is needed, the flags, the method, the time and the date.
    """

    name: str
    header: int
    size: int
    crc: int
    full_name: bytes
    shared: tuple[int, ...]


class TorchZip:
    """One archive at ``[offset, offset + length)`` of something that can be read by ranges.

    Args:
        read: Reads from the file that holds the archive.
        offset: Where the archive starts.
        length: How long it is.
        where: The file and entry, for messages.

    Raises:
        CheckpointFormatError: It is not such an archive.
        UnsupportedFeatureError: It is one, with records that are compressed, or of another byte order.
    """

    def __init__(self, read: Read, offset: int, length: int, *, where: str) -> None:
        self.where = where
        self._offset = offset
        self._length = length
        if length <= _WHOLE:
            # One request in place of four: end, directory, header, record.
            data = read(offset, length)
            self.read_at: Read = lambda start, count: data[start : start + count]
        else:
            self.read_at = lambda start, count: read(offset + start, min(count, max(length - start, 0)))
        self.records, self.end, self.directory_size = self._directory()
        self._check_byte_order()

    def position(self, name: str) -> int:
        """Return where the bytes of a record start, counted from the start of the file.

        Raises:
            CheckpointFormatError: There is no such record, or its place is not inside the item.
        """
        record = self._record(name)
        header = self.read_at(record.header, _LOCAL.size)
        if len(header) < _LOCAL.size or header[:4] != b"PK\x03\x04":
            raise self.broken(f"the record `{name}` does not start where the directory says")
        fields = _LOCAL.unpack(header)
        # Lengths of this header, not of the directory: torch pads by the extra field here alone.
        start = record.header + _LOCAL.size + fields[9] + fields[10]
        if start + record.size > self.end:
            raise self.broken(f"the record `{name}` reaches beyond the item")
        return int(self._offset + start)

    @property
    def length(self) -> int:
        """Return how long the archive is."""
        return self._length

    def relative(self, position: int) -> int:
        """Return a position in the file as one in the archive."""
        return position - self._offset

    def read(self, name: str) -> bytes:
        """Return the bytes of a record, once they agree with its checksum.

        Raises:
            CheckpointFormatError: They do not, or there are more than any but a tensor has.
        """
        size = self._record(name).size
        if size > MAX_RECORD:
            raise self.broken(f"the record `{name}` has {size} bytes; at most {MAX_RECORD} are read at once")
        start = self.position(name) - self._offset
        data = self.read_at(start, self._record(name).size)
        expected = self.stored_crc(name)
        if expected is not None:
            self._compare(name, crc32(data), expected)
        return data

    def stored_crc(self, name: str) -> int | None:
        """Return the checksum of a record, or None where it has none."""
        record = self._record(name)
        # torch writes 0 where the user switched checksums off (torch.serialization.set_crc32_options).
        return None if record.crc == 0 and record.size else record.crc

    def pieces(self, name: str, buffer_bytes: int) -> Iterator[bytes]:
        """Yield the bytes of a record in pieces of at most ``buffer_bytes``."""
        start, left = self.position(name) - self._offset, self._record(name).size
        while left > 0:
            count = min(left, buffer_bytes)
            yield self.read_at(start, count)
            start, left = start + count, left - count

    def check_crc(self, name: str) -> int | None:
        """Compare a record with its checksum.

        Returns:
            How many bytes it has; None where it has no checksum.

        Raises:
            CheckpointFormatError: They differ.
        """
        expected = self.stored_crc(name)
        if expected is None:
            return None
        crc = count = 0
        for piece in self.pieces(name, _BLOCK):
            crc = crc32(piece, crc)
            count += len(piece)
        self._compare(name, crc, expected)
        return count

    def _compare(self, name: str, crc: int, expected: int) -> None:
        if crc != expected:
            msg = f"the record `{name}` has the checksum {crc:08x}, but {expected:08x} was written"
            raise self.broken(msg)

    def _record(self, name: str) -> ZipRecord:
        try:
            return self.records[name]
        except KeyError:
            raise self.broken(f"there is no record `{name}`") from None

    def broken(self, what: str) -> CheckpointFormatError:
        """Return the error for an archive of which ``what`` is not as it should be."""
        msg = f"{self.where} is not what torch.save writes: {what}. The file is damaged or of another kind."
        return CheckpointFormatError(msg)

    def _directory(self) -> tuple[dict[str, ZipRecord], int, int]:
        start, size, count = self._find_directory()
        if start < 0 or size < 0 or start + size > self._length or count * _CENTRAL.size > size:
            raise self.broken("its directory does not fit into it")
        if size > _MAX_DIRECTORY:
            raise self.broken(f"its directory has {size} bytes; at most {_MAX_DIRECTORY} are read")
        data = self.read_at(start, size)
        records: dict[str, ZipRecord] = {}
        at = 0
        for _ in range(count):
            record, at = self._entry(data, at)
            # One reader would take the first of the two, and another the second.
            if record.name in records:
                raise self.broken(f"it has two records called `{record.name[:80]}`")
            records[record.name] = record
        return records, start, at

    def _find_directory(self) -> tuple[int, int, int]:
        tail = self.read_at(max(self._length - _TAIL, 0), min(self._length, _TAIL))
        # The last one counts: the bytes of a tensor may spell the mark, too.
        at = tail.rfind(b"PK\x05\x06")
        if at < 0 or at + _END.size > len(tail):
            raise self.broken("it is no zip archive")
        fields = _END.unpack_from(tail, at)
        count, size, start = fields[4], fields[5], fields[6]
        if count != 0xFFFF and _MAX32 not in (size, start):
            return start, size, count
        locator = at - _END64_LOCATOR.size
        if locator < 0 or tail[locator : locator + 4] != b"PK\x06\x07":
            raise self.broken("its end record points to a 64-bit one that is not there")
        end64_at = _END64_LOCATOR.unpack_from(tail, locator)[2]
        end64 = self.read_at(end64_at, _END64.size) if end64_at < self._length else b""
        if len(end64) < _END64.size or end64[:4] != b"PK\x06\x06":
            raise self.broken("its 64-bit end record is not where it should be")
        fields = _END64.unpack(end64)
        return fields[9], fields[8], fields[7]

    def _entry(self, data: bytes, at: int) -> tuple[ZipRecord, int]:
        if data[at : at + 4] != b"PK\x01\x02" or at + _CENTRAL.size > len(data):
            raise self.broken("its directory is damaged")
        fields = _CENTRAL.unpack_from(data, at)
        method, crc, stored, size = fields[4], fields[7], fields[8], fields[9]
        # torch takes what says that it is a folder for empty, and reads nothing.
        if fields[13] or fields[15] & _FOLDER:
            raise self.broken("its directory is damaged")
        name_end = at + _CENTRAL.size + fields[10]
        extra_end = name_end + fields[11]
        full_name = data[at + _CENTRAL.size : name_end]
        name = full_name.decode("utf-8", "replace")
        wide = _wide_fields(data[name_end:extra_end], (size, stored, fields[16]))
        if wide is None:
            raise self.broken(f"the 64-bit sizes of `{name}` are missing")
        size, stored, header = wide
        if (method == 0) != (stored == size):
            raise self.broken(f"the method or the size of the record `{name[:80]}` is damaged")
        if method != 0:
            msg = (
                f"{self.where}: the record `{name}` is compressed. torch.save does not do that; load and "
                "save the checkpoint again with torch."
            )
            raise UnsupportedFeatureError(msg, feature="compressed records")
        if header + size > self._length:
            raise self.broken(f"the record `{name}` reaches beyond the item")
        # The first part is the archive's own name, whatever the file is called now.
        short = name.partition("/")[2] or name
        return ZipRecord(short, header, size, crc, full_name, fields[2:7]), extra_end + fields[12]

    def _check_byte_order(self) -> None:
        if "byteorder" in self.records and self.records["byteorder"].size < 16:
            order = self.read("byteorder")
            if order != b"little":
                msg = f"{self.where} was written with byte order {order!r}; only b'little' can be read."
                raise UnsupportedFeatureError(msg, feature="big-endian checkpoints")


def _wide_fields(extra: bytes, values: tuple[int, int, int]) -> tuple[int, int, int] | None:
    """Replace those of size, stored size and header position that stand in the 64-bit extra field."""
    if _MAX32 not in values:
        return values
    at = 0
    while at + 4 <= len(extra):
        kind, size = struct.unpack_from("<2H", extra, at)
        if kind == 1:
            field = extra[at + 4 : at + 4 + size]
            numbers = list(struct.unpack_from(f"<{len(field) // 8}Q", field))
            # In this order, and only those that the directory has no room for.
            wide = [numbers.pop(0) if v == _MAX32 and numbers else v for v in values]
            return (wide[0], wide[1], wide[2])
        at += 4 + size
    return None
