"""Write the items of data files: copied, from memory, or put together from the chunks of the source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from isal.isal_zlib import crc32, crc32_combine

from fsdp_migrate.checkpoint_convert.execution.placement import (
    CopyItem,
    DataItem,
    EndItem,
    Item,
    RawArchive,
    TensorItem,
)
from fsdp_migrate.checkpoint_convert.formats.cast import Caster
from fsdp_migrate.checkpoint_convert.formats.copied_archive import (
    CopiedArchive,
    open_copied,
    open_copied_file,
)
from fsdp_migrate.checkpoint_convert.formats.tensor_reader import TensorSource
from fsdp_migrate.checkpoint_convert.formats.zip_writer import StreamedRecord
from fsdp_migrate.checkpoint_convert.storage.folders import is_url


if TYPE_CHECKING:
    from fsdp_migrate.checkpoint_convert.formats.stored_checksums import StoredChecks
    from fsdp_migrate.checkpoint_convert.storage.folders import Folder
    from fsdp_migrate.checkpoint_convert.storage.threads import Advance

# What is read stays in the core's cache until its checksum is taken and it is copied to be written.
_BLOCK: Final = 512 << 10
# Behind a URL each block is a request.
_REMOTE_BLOCK: Final = 8 << 20
_LEAST: Final = 64


class Sink(Protocol):
    """What takes bytes, from the first to the last."""

    def write(self, data: bytes | memoryview, /) -> object:
        """Append bytes."""
        ...


class ItemWriter:
    """Writes items one after the other; one per thread.

    ``crcs`` are the checksums of the streamed records of the file that is being written.
    """

    def __init__(
        self,
        source: Folder,
        block: int,
        advance: Advance,
        overflows: dict[str, int],
        checks: StoredChecks,
    ) -> None:
        self._source = source
        self._block = max(min(block, _REMOTE_BLOCK if is_url(source.url) else _BLOCK), _LEAST)
        self._tensors = TensorSource(source, self._block, checks)
        self._checks = checks
        self._archives: dict[str, CopiedArchive | None] = {}
        self._buffer = bytearray(0)
        self._advance = advance
        self._overflows = overflows
        self.crcs: list[int] = []

    def write(self, item: Item, file: Sink) -> None:
        """Append an item to a file."""
        if isinstance(item, CopyItem):
            self._copy(item, file)
        elif isinstance(item, DataItem | EndItem):
            file.write(item.data if isinstance(item, DataItem) else item.end.directory(self.crcs))
            self._advance(item.length)
        else:
            self._assemble(item, file)

    def _copy(self, item: CopyItem, file: Sink) -> None:
        stored = item.source
        archive = self._archive(item)
        for start in range(0, stored.length, self._block):
            count = min(self._block, stored.length - start)
            if len(self._buffer) < count:
                self._buffer = bytearray(count)
            block = memoryview(self._buffer)[:count]
            self._source.read_into(stored.file, stored.offset + start, block)
            if archive is None:
                self._checks.agreed_on(0, count)
            else:
                archive.saw(stored.offset + start, block, self._checks)
            file.write(block)
            self._advance(count)

    def _archive(self, item: CopyItem) -> CopiedArchive | None:
        """Return what is known of the archive that is copied, if it is one."""
        stored = item.source
        if item.kind == "bytes":
            return None
        if item.kind == "item":
            return open_copied(self._source, stored)
        if stored.file not in self._archives:
            self._archives[stored.file] = open_copied_file(self._source, stored.file, item.file_size)
        return self._archives[stored.file]

    def _assemble(self, item: TensorItem, file: Sink) -> None:
        entry, archive = item.tensor.source, item.archive
        caster = Caster(entry.dtype, item.tensor.dtype) if item.tensor.is_cast else None
        has_crc = not isinstance(archive, RawArchive)
        file.write(archive.head)
        crc = written = 0
        for block in self._tensors.read(entry, item.box):
            data = block if caster is None else caster.cast(block)
            if has_crc:
                # What is known is the checksum of the bytes that were read; a cast makes others of them.
                known = self._tensors.block_crc if caster is None else None
                crc = crc32(data, crc) if known is None else crc32_combine(crc, known, len(data))
            file.write(data)
            written += len(data)
            self._advance(len(data))
        if written != archive.payload:
            raise AssertionError(f"{written} bytes were written where {archive.payload} were planned")
        if isinstance(archive, StreamedRecord):
            self.crcs.append(crc)
        file.write(archive.tail(crc))
        self._advance(archive.length - archive.payload)
        if caster is not None and caster.overflows:
            key = item.tensor.key
            self._overflows[key] = self._overflows.get(key, 0) + caster.overflows
