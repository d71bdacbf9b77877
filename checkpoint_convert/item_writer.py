"""Write the items of data files: copied, from memory, or put together from the chunks of the source."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final, Protocol

from fsdp_migrate.checkpoint_convert.cast import Caster
from fsdp_migrate.checkpoint_convert.placement import CopyItem, DataItem, Item, RawArchive, TensorItem
from fsdp_migrate.checkpoint_convert.tensor_stream import TensorSource


if TYPE_CHECKING:
    from fsdp_migrate.checkpoint_convert.storage import Folder
    from fsdp_migrate.checkpoint_convert.workers import Advance

_COPY: Final = 8 << 20
_LEAST: Final = 64


class Sink(Protocol):
    """What takes bytes, from the first to the last."""

    def write(self, data: bytes | memoryview, /) -> object:
        """Append bytes."""
        ...


class ItemWriter:
    """Writes items one after the other; one per thread."""

    def __init__(self, source: Folder, block: int, advance: Advance, overflows: dict[str, int]) -> None:
        self._source = source
        self._block = max(min(block, _COPY), _LEAST)
        self._tensors = TensorSource(source, self._block)
        self._buffer = bytearray(0)
        self._advance = advance
        self._overflows = overflows

    def write(self, item: Item, file: Sink) -> None:
        """Append an item to a file."""
        if isinstance(item, CopyItem):
            self._copy(item, file)
        elif isinstance(item, DataItem):
            file.write(item.data)
            self._advance(item.length)
        else:
            self._assemble(item, file)

    def _copy(self, item: CopyItem, file: Sink) -> None:
        stored = item.source
        for start in range(0, stored.length, self._block):
            count = min(self._block, stored.length - start)
            if len(self._buffer) < count:
                self._buffer = bytearray(count)
            block = memoryview(self._buffer)[:count]
            self._source.read_into(stored.file, stored.offset + start, block)
            file.write(block)
            self._advance(count)

    def _assemble(self, item: TensorItem, file: Sink) -> None:
        entry, archive = item.tensor.source, item.archive
        caster = Caster(entry.dtype, item.tensor.dtype) if item.tensor.is_cast else None
        has_crc = not isinstance(archive, RawArchive)
        file.write(archive.head)
        crc = written = 0
        for block in self._tensors.read(entry, item.box):
            data = block if caster is None else caster.cast(block)
            if has_crc:
                crc = zlib.crc32(data, crc)
            file.write(data)
            written += len(data)
            self._advance(len(data))
        if written != archive.payload:
            raise AssertionError(f"{written} bytes were written where {archive.payload} were planned")
        file.write(archive.tail(crc))
        self._advance(archive.length - archive.payload)
        if caster is not None and caster.overflows:
            key = item.tensor.key
            self._overflows[key] = self._overflows.get(key, 0) + caster.overflows
