"""Compare what is read with the checksums that torch.save stored, wherever a record is read whole.

A record is often read in parts: by several threads or ranks, in another order, or by a process that was
killed and one that went on. Each part has its own CRC-32, and those of parts that follow each other are put
together to that of the whole, without the bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from isal.isal_zlib import crc32, crc32_combine

from fsdp_migrate.checkpoint_convert.manifest.manifest import StoredRecord
from fsdp_migrate.errors import CheckpointFormatError


if TYPE_CHECKING:
    from collections.abc import Iterable

    from fsdp_migrate.checkpoint_convert.storage.folders import Folder


_BLOCK: Final = 8 << 20


class RecordRun(NamedTuple):
    """A part of a stored record that was read, from byte ``start`` of it to ``end``, and its checksum.

    All of it is plain, for journals and messages between ranks.
    """

    file: str
    position: int
    size: int
    crc: int
    start: int
    end: int
    found: int

    @property
    def record(self) -> StoredRecord:
        """Return the record."""
        return StoredRecord(self.position, self.size, self.crc)


class StoredChecks:
    """Compares stored records as they are read. One per thread.

    Attributes:
        agreed: The bytes of records that were read whole, and agree with their checksums.
        bare: The bytes that were read and carry no checksum.
    """

    def __init__(self, folder: Folder) -> None:
        self.agreed = 0
        self.bare = 0
        self._folder = folder
        self._open: dict[tuple[str, StoredRecord], _Runs] = {}
        self._done: set[tuple[str, StoredRecord]] = set()

    def saw(self, file: str, record: StoredRecord | None, position: int, data: memoryview) -> None:
        """Take note of bytes that were read at a position of a file, all of them in one record.

        Raises:
            CheckpointFormatError: The record is whole now, and is not what was written.
        """
        if record is None:
            self.bare += len(data)
            return
        key = file, record
        if key in self._done:
            return
        runs = self._open.get(key)
        if runs is None:
            runs = self._open[key] = _Runs()
        crc = runs.add(position - record.position, data, record.size)
        if crc is not None:
            del self._open[key]
            self._agree(file, record, crc)

    def saw_crc(self, file: str, record: StoredRecord, position: int, nbytes: int, crc: int) -> None:
        """Take note of bytes of which the checksum is known already; see ``saw``."""
        key = file, record
        if key in self._done:
            return
        start = position - record.position
        runs = self._open.setdefault(key, _Runs())
        runs.put(start, start + nbytes, crc)
        whole = runs.whole(record.size)
        if whole is not None:
            del self._open[key]
            self._agree(file, record, whole)

    def read_whole(self, file: str, record: StoredRecord | None, nbytes: int) -> None:
        """Read a record for nothing but its checksum: where it is about to be read in another order."""
        if record is None:
            self.bare += nbytes
        elif (file, record) not in self._done:
            check_record(self._folder, file, record)
            self._open.pop((file, record), None)
            self._done.add((file, record))
            self.agreed += record.size

    def agreed_on(self, checked: int, bare: int) -> None:
        """Count bytes that were compared elsewhere."""
        self.agreed += checked
        self.bare += bare

    def resume(self, runs: Iterable[RecordRun]) -> None:
        """Go on with parts that an earlier process read."""
        for run in runs:
            self._open.setdefault((run.file, run.record), _Runs()).put(run.start, run.end, run.found)

    def runs(self) -> list[RecordRun]:
        """Return the parts of records that were not read whole."""
        return [
            RecordRun(file, *record, start, end, crc)
            for (file, record), runs in self._open.items()
            for start, end, crc in runs.found()
        ]

    def join(self, runs: Iterable[RecordRun]) -> int:
        """Put parts together that several threads, ranks or processes read; return what stays unknown.

        Returns:
            The bytes of records that were read in part.

        Raises:
            CheckpointFormatError: A record that was read whole between them is not what was written.
        """
        # By their starts, the longest first of two that begin at one byte: it reaches what comes next.
        self.resume(sorted(runs, key=lambda run: (run.start, -run.end)))
        unknown = 0
        for (file, record), found in list(self._open.items()):
            crc = found.whole(record.size)
            if crc is None:
                unknown += found.covered()
                continue
            del self._open[file, record]
            self._agree(file, record, crc)
        return unknown

    def _agree(self, file: str, record: StoredRecord, crc: int) -> None:
        _compare(f"{self._folder.url}/{file}", record, crc)
        self._done.add((file, record))
        self.agreed += record.size


class _Runs:
    """Parts of one record: where each ends, where it starts, and its checksum."""

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._ends: dict[int, tuple[int, int]] = {}
        self._starts: dict[int, int] = {}

    def add(self, at: int, data: memoryview, size: int) -> int | None:
        """Add bytes; return the checksum of all of them once the record is whole."""
        start, crc = self._ends.pop(at, (at, 0))
        self.put(start, at + len(data), crc32(data, crc))
        return self.whole(size)

    def put(self, start: int, end: int, crc: int) -> None:
        """Add a part, and join it to those before and behind it."""
        # Parts are joined only where they meet: of parts that overlap no checksum of the whole can be made.
        before = self._ends.pop(start, None)
        if before is not None:
            start, crc = before[0], crc32_combine(before[1], crc, end - start)
        later = self._starts.pop(end, None)
        behind = None if later is None else self._ends.get(later)
        if later is not None and behind is not None and behind[0] == end:
            del self._ends[later]
            crc, end = crc32_combine(crc, behind[1], later - end), later
        known = self._ends.get(end)
        # What was read twice counts where it reaches further.
        if known is None or start <= known[0]:
            self._ends[end] = start, crc
        if self._starts.get(start, 0) < end:
            self._starts[start] = end

    def whole(self, size: int) -> int | None:
        """Return the checksum of the whole record, if it is."""
        found = self._ends.get(size)
        return found[1] if found is not None and found[0] == 0 else None

    def found(self) -> list[tuple[int, int, int]]:
        """Return start, end and checksum of each part."""
        return [(start, end, crc) for end, (start, crc) in self._ends.items()]

    def covered(self) -> int:
        """Return how many bytes are in any part."""
        covered = reached = 0
        for start, end, _ in sorted(self.found()):
            covered += max(end - max(start, reached), 0)
            reached = max(reached, end)
        return covered


def check_record(folder: Folder, file: str, record: StoredRecord) -> None:
    """Read a record, and compare it with its checksum.

    Raises:
        CheckpointFormatError: They differ.
    """
    crc = 0
    buffer = bytearray(min(_BLOCK, record.size))
    for start in range(0, record.size, _BLOCK):
        view = memoryview(buffer)[: min(_BLOCK, record.size - start)]
        folder.read_into(file, record.position + start, view)
        crc = crc32(view, crc)
    _compare(f"{folder.url}/{file}", record, crc)


def _compare(path: str, record: StoredRecord, crc: int) -> None:
    if crc != record.crc:
        msg = (
            f"{path!r} is damaged: its {record.size} bytes from {record.position} on have the checksum "
            f"{crc:08x}, but {record.crc:08x} was written. Copy the checkpoint again from where it was saved."
        )
        raise CheckpointFormatError(msg, path=path)
