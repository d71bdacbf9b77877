"""An archive of torch.save that is copied byte for byte, checked on the way."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from fsdp_migrate.checkpoint_convert.formats.dcp_items import open_item
from fsdp_migrate.checkpoint_convert.formats.whole_files import SAVED_SUFFIXES, open_whole_file
from fsdp_migrate.checkpoint_convert.formats.zip_check import check_structure
from fsdp_migrate.checkpoint_convert.manifest.manifest import StoredRecord


if TYPE_CHECKING:
    from fsdp_migrate.checkpoint_convert.formats.stored_checksums import StoredChecks
    from fsdp_migrate.checkpoint_convert.formats.zip_reader import TorchZip
    from fsdp_migrate.checkpoint_convert.manifest.manifest import Stored
    from fsdp_migrate.checkpoint_convert.storage.folders import Folder


class CopiedArchive:
    """What lies where in an archive.

    Raises:
        CheckpointFormatError: What it says of itself in one place differs from what it says in another.
    """

    def __init__(self, archive: TorchZip, file: str) -> None:
        # What is copied unread would else carry a torn header along: its checksums are of records alone.
        check_structure(archive)
        self._file = file
        found = [
            (archive.position(name), record.size, archive.stored_crc(name))
            for name, record in archive.records.items()
        ]
        self._records = sorted(found, key=lambda record: record[0])
        self._starts = [position for position, _, _ in self._records]

    def saw(self, position: int, data: memoryview, checks: StoredChecks) -> None:
        """Take note of bytes that were read at a position of the file.

        Raises:
            CheckpointFormatError: A record is whole now, and is not what was written.
        """
        first = max(bisect_right(self._starts, position) - 1, 0)
        for start, size, crc in self._records[first:]:
            begin, end = max(start, position), min(start + size, position + len(data))
            if start >= position + len(data):
                break
            if begin < end:
                record = None if crc is None else StoredRecord(start, size, crc)
                checks.saw(self._file, record, begin, data[begin - position : end - position])


def open_copied(folder: Folder, stored: Stored) -> CopiedArchive:
    """Open an item of a distributed checkpoint that is about to be copied.

    Raises:
        CheckpointFormatError: It is damaged.
    """
    where = f"the item at byte {stored.offset} of '{folder.url}/{stored.file}'"
    return CopiedArchive(open_item(folder, stored, where=where), stored.file)


def open_copied_file(folder: Folder, name: str, size: int) -> CopiedArchive | None:
    """Open a file of the user's that is about to be copied; None where it is no archive of torch.save.

    Raises:
        CheckpointFormatError: It is one, and damaged.
    """
    archive = open_whole_file(folder, name, size, is_own=False) if name.endswith(SAVED_SUFFIXES) else None
    return None if archive is None else CopiedArchive(archive, name)
