"""Check every byte of an archive of torch.save: its records by their checksums, the rest by each other.

A zip archive says most things twice. The header before a record and the directory at the end have its name,
its flags and its times; a descriptor behind a record repeats its checksum and sizes; the end says, in 32 and
in 64 bits, where the directory is. torch writes nothing between these. So a bit that flips in any of them is
found by what it no longer agrees with. What nothing repeats and no reader looks at is left alone: on which
system an archive was made, and attributes of files.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final


if TYPE_CHECKING:
    from collections.abc import Callable

    from fsdp_migrate.checkpoint_convert.formats.zip_reader import TorchZip, ZipRecord


_LOCAL: Final = struct.Struct("<4s5H3I2H")
_END: Final = struct.Struct("<4s4H2IH")
_END64_LOCATOR: Final = struct.Struct("<4sIQI")
_END64: Final = struct.Struct("<4sQ2H2I4Q")
_MAX16, _MAX32 = 0xFFFF, 0xFFFFFFFF
# What torch fills up with so that the bytes of a record start at a multiple of 64.
_PADDING: Final = b"FB"


def check_archive(archive: TorchZip, advance: Callable[[int], None] | None = None) -> tuple[int, int]:
    """Check an archive, and read it whole for that.

    Args:
        archive: The archive.
        advance: Called with the number of bytes of each record that was read.

    Returns:
        How many bytes are in records with a checksum, and how many in records without one.

    Raises:
        CheckpointFormatError: Something in it does not agree with something else.

    Example:
        >>> import io, torch
        >>> from fsdp_migrate.checkpoint_convert.formats.zip_reader import TorchZip
        >>> file = io.BytesIO()
        >>> torch.save(torch.zeros(1000), file)
        >>> data = file.getvalue()
        >>> archive = TorchZip(lambda start, count: data[start : start + count], 0, len(data), where="it")
        >>> checked, unchecked = check_archive(archive)
        >>> checked > 4000, unchecked
        (True, 0)
    """
    check_structure(archive)
    checked = unchecked = 0
    for record in archive.records.values():
        count = archive.check_crc(record.name)
        checked, unchecked = checked + (count or 0), unchecked + (record.size if count is None else 0)
        if advance is not None:
            advance(record.size)
    return checked, unchecked


def check_structure(archive: TorchZip) -> None:
    """Check what an archive says of itself, without reading its records.

    Raises:
        CheckpointFormatError: Something in it does not agree with something else.
    """
    records = sorted(archive.records.values(), key=lambda record: record.header)
    if not records:
        raise archive.broken("its directory is empty")
    end = 0
    for record, following in zip(records, [*(r.header for r in records[1:]), archive.end], strict=True):
        if record.header != end:
            raise archive.broken(f"byte {end} to {record.header} belong to no record")
        _check_record(archive, record, following)
        end = following
    _check_end(archive)


def _check_record(archive: TorchZip, record: ZipRecord, following: int) -> None:
    """Hold the header and the descriptor of a record against the directory."""
    name = record.name[:80]
    start = archive.position(record.name)
    header = archive.read_at(record.header, _LOCAL.size)
    fields = _LOCAL.unpack(header)
    full_name = archive.read_at(record.header + _LOCAL.size, fields[9])
    if full_name != record.full_name or fields[1:6] != record.shared:
        raise archive.broken(f"the header of the record `{name}` and the directory differ")
    # The flag 0x08: checksum and sizes are zeros in the header, and stand behind the record.
    is_behind = bool(record.shared[1] & 8)
    said = (0, 0, 0) if is_behind else (record.crc, record.size, record.size)
    wide = tuple(min(_MAX32, n) for n in said)
    if fields[6:9] not in (said, wide, (record.crc, _MAX32, _MAX32)):
        raise archive.broken(f"the header of the record `{name}` has other sizes than the directory")
    extra = archive.read_at(record.header + _LOCAL.size + fields[9], fields[10])
    if not _is_extra(extra):
        raise archive.broken(f"the header of the record `{name}` is damaged behind its name")
    data_end = archive.relative(start) + record.size
    behind = archive.read_at(data_end, following - data_end) if following - data_end <= 24 else b""
    forms = [
        b"PK\7\x08" + struct.pack(sizes, record.crc, record.size, record.size)
        for sizes in ("<3I", "<I2Q")
        if record.size <= _MAX32 or sizes == "<I2Q"
    ]
    if following != data_end and behind not in forms:
        raise archive.broken(f"what follows the record `{name}` is not what the directory says of it")
    if following == data_end and is_behind and record.size:
        raise archive.broken(f"the checksum behind the record `{name}` is missing")


def _is_extra(extra: bytes) -> bool:
    """Tell whether the fields behind a name are whole, and the padding is padding."""
    at = 0
    while at < len(extra):
        if at + 4 > len(extra):
            return False
        size = int.from_bytes(extra[at + 2 : at + 4], "little")
        field = extra[at + 4 : at + 4 + size]
        is_padding = bool(field) and not field.strip(b"Z")
        if len(field) != size or (field and is_padding != (extra[at : at + 2] == _PADDING)):
            return False
        at += 4 + size
    return True


def _check_end(archive: TorchZip) -> None:
    """Hold the records at the end against each other and against what lies before them."""
    # Behind the end record zip allows a comment of up to 64 KiB.
    tail_at = max(archive.length - _END.size - (1 << 16), archive.end, 0)
    tail = archive.read_at(tail_at, archive.length - tail_at)
    at = tail.rfind(b"PK\5\6")
    fields = _END.unpack_from(tail, at)
    size, count = archive.directory_size, len(archive.records)
    wanted = (count, count, size, archive.end)
    # Each number as it is, or all ones where only the 64-bit record has it.
    narrow = (min(count, _MAX16), min(count, _MAX16), min(size, _MAX32), min(archive.end, _MAX32))
    if fields[1:3] != (0, 0) or tail_at + at + _END.size + fields[7] != archive.length:
        raise archive.broken("its end record is damaged")
    wide = (_MAX16, _MAX16, _MAX32, _MAX32)
    if any(found not in pair for found, *pair in zip(fields[3:7], narrow, wide, strict=True)):
        raise archive.broken("its end record and its directory differ")
    end64_at = archive.end + size
    between = tail_at + at - end64_at
    if between == 0:
        return
    whole = archive.read_at(end64_at, between) if between == _END64.size + _END64_LOCATOR.size else b""
    if not whole or whole[:4] != b"PK\6\6" or whole[_END64.size : _END64.size + 4] != b"PK\6\7":
        raise archive.broken("between its directory and its end is something else")
    end64, locator = _END64.unpack_from(whole), _END64_LOCATOR.unpack_from(whole, _END64.size)
    if end64[1] != _END64.size - 12 or end64[4:] != (0, 0, *wanted) or locator[1:] != (0, end64_at, 1):
        raise archive.broken("its 64-bit end record and its directory differ")
