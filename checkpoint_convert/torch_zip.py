"""Read the zip archives that ``torch.save`` writes, by ranges, without unpacking them.

Every item of a ``.distcp`` file is such an archive: records stored uncompressed under one folder name, among
them ``data.pkl`` and, per tensor, ``data/<number>``. Every size and position is held against the item before
it is used.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from fsdp_migrate.errors import CheckpointFormatError, UnsupportedFeatureError


_LOCAL: Final = struct.Struct("<4s5H3I2H")
_CENTRAL: Final = struct.Struct("<4s6H3I5H2I")
_END: Final = struct.Struct("<4s4H2IH")
_END64_LOCATOR: Final = struct.Struct("<4sIQI")
_END64: Final = struct.Struct("<4sQ2H2I4Q")
_MAX32: Final = 0xFFFFFFFF
_TAIL: Final = 4096
_WHOLE: Final = 64 << 10

Read = Callable[[int, int], bytes]
"""Return ``length`` bytes from ``offset``; the arguments come in this order."""


@dataclass(frozen=True)
class ZipRecord:
    """One stored record: where its local header stands in the item, its size and its checksum."""

    name: str
    header: int
    size: int
    crc: int


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
            data = read(offset, length)
            self._read: Read = lambda start, count: data[start : start + count]
        else:
            self._read = lambda start, count: read(offset + start, count)
        self.records, self._end = self._directory()
        self._check_byte_order()

    def position(self, name: str) -> int:
        """Return where the bytes of a record start, counted from the start of the file.

        Raises:
            CheckpointFormatError: There is no such record, or its place is not inside the item.
        """
        record = self._record(name)
        header = self._read(record.header, _LOCAL.size)
        if len(header) < _LOCAL.size or header[:4] != b"PK\x03\x04":
            raise self._broken(f"the record `{name}` does not start where the directory says")
        fields = _LOCAL.unpack(header)
        start = record.header + _LOCAL.size + fields[9] + fields[10]
        if start + record.size > self._end:
            raise self._broken(f"the record `{name}` reaches beyond the item")
        return int(self._offset + start)

    def read(self, name: str) -> bytes:
        """Return the bytes of a record."""
        start = self.position(name) - self._offset
        return self._read(start, self._record(name).size)

    def pieces(self, name: str, buffer_bytes: int) -> Iterator[bytes]:
        """Yield the bytes of a record in pieces of at most ``buffer_bytes``."""
        start, left = self.position(name) - self._offset, self._record(name).size
        while left > 0:
            count = min(left, buffer_bytes)
            yield self._read(start, count)
            start, left = start + count, left - count

    def check_crc(self, name: str, buffer_bytes: int = 8 << 20) -> None:
        """Compare a record with its checksum.

        Raises:
            CheckpointFormatError: They differ.
        """
        crc = 0
        for piece in self.pieces(name, buffer_bytes):
            crc = zlib.crc32(piece, crc)
        expected = self._record(name).crc
        # torch writes 0 where the user switched checksums off (torch.serialization.set_crc32_options).
        if crc != expected and expected != 0:
            msg = f"the record `{name}` has the checksum {crc:08x}, but {expected:08x} was written"
            raise self._broken(msg)

    def _record(self, name: str) -> ZipRecord:
        try:
            return self.records[name]
        except KeyError:
            raise self._broken(f"there is no record `{name}`") from None

    def _broken(self, what: str) -> CheckpointFormatError:
        msg = f"{self.where} is not what torch.save writes: {what}. The file is damaged or of another kind."
        return CheckpointFormatError(msg)

    def _directory(self) -> tuple[dict[str, ZipRecord], int]:
        start, size, count = self._find_directory()
        if start < 0 or size < 0 or start + size > self._length or count * _CENTRAL.size > size:
            raise self._broken("its directory does not fit into it")
        data = self._read(start, size)
        records: dict[str, ZipRecord] = {}
        at = 0
        for _ in range(count):
            record, at = self._entry(data, at)
            records[record.name] = record
        return records, start

    def _find_directory(self) -> tuple[int, int, int]:
        tail = self._read(max(self._length - _TAIL, 0), min(self._length, _TAIL))
        at = tail.rfind(b"PK\x05\x06")
        if at < 0 or at + _END.size > len(tail):
            raise self._broken("it is no zip archive")
        fields = _END.unpack_from(tail, at)
        count, size, start = fields[4], fields[5], fields[6]
        if count != 0xFFFF and _MAX32 not in (size, start):
            return start, size, count
        locator = at - _END64_LOCATOR.size
        if locator < 0 or tail[locator : locator + 4] != b"PK\x06\x07":
            raise self._broken("its end record points to a 64-bit one that is not there")
        end64_at = _END64_LOCATOR.unpack_from(tail, locator)[2]
        end64 = self._read(end64_at, _END64.size) if end64_at < self._length else b""
        if len(end64) < _END64.size or end64[:4] != b"PK\x06\x06":
            raise self._broken("its 64-bit end record is not where it should be")
        fields = _END64.unpack(end64)
        return fields[9], fields[8], fields[7]

    def _entry(self, data: bytes, at: int) -> tuple[ZipRecord, int]:
        if data[at : at + 4] != b"PK\x01\x02" or at + _CENTRAL.size > len(data):
            raise self._broken("its directory is damaged")
        fields = _CENTRAL.unpack_from(data, at)
        method, crc, stored, size = fields[4], fields[7], fields[8], fields[9]
        name_end = at + _CENTRAL.size + fields[10]
        extra_end = name_end + fields[11]
        name = data[at + _CENTRAL.size : name_end].decode("utf-8", "replace")
        wide = _wide_fields(data[name_end:extra_end], (size, stored, fields[16]))
        if wide is None:
            raise self._broken(f"the 64-bit sizes of `{name}` are missing")
        size, stored, header = wide
        if method != 0 or stored != size:
            msg = (
                f"{self.where}: the record `{name}` is compressed. torch.save does not do that; load and "
                "save the checkpoint again with torch."
            )
            raise UnsupportedFeatureError(msg, feature="compressed records")
        if header + size > self._length:
            raise self._broken(f"the record `{name}` reaches beyond the item")
        short = name.partition("/")[2] or name
        return ZipRecord(short, header, size, crc), extra_end + fields[12]

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
            numbers = list(struct.unpack_from(f"<{size // 8}Q", extra[at + 4 : at + 4 + size]))
            wide = [numbers.pop(0) if v == _MAX32 and numbers else v for v in values]
            return (wide[0], wide[1], wide[2])
        at += 4 + size
    return None
