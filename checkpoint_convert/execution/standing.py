"""Is an output what a conversion would write now, byte for byte: one that stands, or its own?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.execution.item_writer import ItemWriter
from fsdp_migrate.checkpoint_convert.formats.checksums import CHECKSUMS_FILE
from fsdp_migrate.checkpoint_convert.formats.stored_checksums import StoredChecks
from fsdp_migrate.checkpoint_convert.storage.folders import LocalFolder
from fsdp_migrate.checkpoint_convert.storage.fsspec import open_folder_at


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fsdp_migrate.checkpoint_convert.execution.placement import Item
    from fsdp_migrate.checkpoint_convert.outputs.output import Output
    from fsdp_migrate.checkpoint_convert.storage.folders import Folder, Location


_BLOCK: Final = 8 << 20


def is_what_stands(
    place: Location,
    source: Folder,
    files: Mapping[str, Sequence[Item]],
    linked: Mapping[str, str],
    closing: Mapping[str, bytes],
    *,
    checksums: bool,
) -> bool:
    """Make every file again, and compare it with what is there; nothing is written.

    Args:
        place: Where the output stands.
        source: The source.
        files: The items of every file.
        linked: The name in the source of each file that may be linked.
        closing: What is written last.
        checksums: Whether checksums are wanted, too.
    """
    sizes = {name: sum(item.length for item in items) for name, items in files.items()}
    sizes.update({name: len(data) for name, data in closing.items()})
    own = open_folder_at(place)
    try:
        found = own.files()
        # The cheapest first: names and sizes, then what is small, then every byte.
        if (checksums and CHECKSUMS_FILE not in found) or any(found.get(n) != sizes[n] for n in sizes):
            return False
        if any(own.read(name, 0, len(data)) != data for name, data in closing.items()):
            return False
        return all(
            _is_linked(own, name, source, linked.get(name))
            or _is_same(_blocks_of(own, name, sizes[name]), source, items)
            for name, items in files.items()
        )
    finally:
        own.close()


def is_what_was_written(output: Output, source: Folder, files: Mapping[str, Sequence[Item]]) -> bool:
    """Make every file again, and compare it with what was written and is not in its place yet.

    Args:
        output: The output, which is not put in its place yet, and reads back.
        source: The source.
        files: The items of every file.
    """
    sizes = {name: sum(item.length for item in items) for name, items in files.items()}
    return all(_is_same(output.kept(name, sizes[name]), source, items) for name, items in files.items())


def _blocks_of(own: Folder, name: str, size: int) -> Iterator[bytes]:
    for at in range(0, size, _BLOCK):
        yield own.read(name, at, min(_BLOCK, size - at))


def _is_linked(own: Folder, name: str, source: Folder, old: str | None) -> bool:
    if old is None or not isinstance(source, LocalFolder) or not isinstance(own, LocalFolder):
        return False
    return (own.path / name).samefile(source.path / old)


def _is_same(written: Iterator[bytes], source: Folder, items: Sequence[Item]) -> bool:
    sink = _Comparing(written)
    writer = ItemWriter(source, _BLOCK, lambda nbytes: None, {}, StoredChecks(source))
    for item in items:
        writer.write(item, sink)
        if not sink.is_same:
            return False
    return True


class _Comparing:
    """Takes the bytes of a file, and compares them with those that are there."""

    def __init__(self, written: Iterator[bytes]) -> None:
        self.is_same = True
        self._written = written
        self._next = memoryview(b"")

    def write(self, data: bytes | memoryview, /) -> object:
        """Compare the next bytes."""
        left = memoryview(data).cast("B")
        while self.is_same and len(left):
            self._next = self._next or memoryview(next(self._written, b""))
            count = min(len(left), len(self._next))
            self.is_same = bool(count) and self._next[:count] == left[:count]
            self._next, left = self._next[count:], left[count:]
        return len(data)
