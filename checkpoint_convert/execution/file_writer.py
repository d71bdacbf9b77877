"""Write the data files of an output, item by item, and note on the way what another process need not redo."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fsdp_migrate.checkpoint_convert.execution.item_writer import ItemWriter
from fsdp_migrate.checkpoint_convert.formats.checksums import Digest
from fsdp_migrate.checkpoint_convert.formats.stored_checksums import RecordRun, StoredChecks
from fsdp_migrate.checkpoint_convert.outputs.journal import Written


if TYPE_CHECKING:
    from collections.abc import Sequence

    from fsdp_migrate.checkpoint_convert.execution.placement import Item
    from fsdp_migrate.checkpoint_convert.execution.segments import Segment
    from fsdp_migrate.checkpoint_convert.outputs.output import Output, OutputFile
    from fsdp_migrate.checkpoint_convert.storage.folders import Folder
    from fsdp_migrate.checkpoint_convert.storage.threads import Advance


# How much of a file is written between two notes of how far it is; each waits for the disk.
MARK_BYTES = 256 << 20


class FileWriter:
    """Writes data files; one for all threads.

    Args:
        source: Where items come from.
        output: What is written.
        block: How many bytes each thread holds at once.
        checksums: Whether to take a checksum of each file that is written in one go.
    """

    def __init__(self, source: Folder, output: Output, block: int, *, checksums: bool) -> None:
        self._source = source
        self._output = output
        self._block = block
        self._checksums = checksums
        self.results: dict[tuple[str, int | None], Written] = {}

    def write(self, segment: Segment, items: Sequence[Item], advance: Advance) -> None:
        """Write a segment, or what is missing of it; its bytes are on the disk then.

        Args:
            segment: The segment.
            items: Its items.
            advance: Called with the bytes that are done.
        """
        name, part = segment.file, segment.part
        before = self._output.written(name, part)
        with_digest = self._checksums and segment.is_whole
        if before.is_done and (before.digest is not None) == with_digest:
            advance(before.nbytes)
            self.results[name, part] = before
            return
        # A checksum begins with the first byte: where what is there cannot be read, all is written again.
        if before.is_done or (with_digest and not self._output.reads_back):
            before = Written(0, 0)
        advance(before.nbytes)
        digest = Digest() if with_digest else None
        if digest is not None:
            for data in self._output.kept(name, before.nbytes):
                digest.update(data)
        with self._output.create(name, before.nbytes, part, segment.nbytes) as file:
            written = self._write_items(segment, items, before, file, digest, advance)
        # After the file is closed, and so on the disk.
        self._output.record(name, written, part)
        self.results[name, part] = written

    def _write_items(
        self,
        segment: Segment,
        items: Sequence[Item],
        before: Written,
        file: OutputFile,
        digest: Digest | None,
        advance: Advance,
    ) -> Written:
        overflows = dict(before.overflows)
        checks = StoredChecks(self._source)
        checks.agreed_on(before.agreed, before.bare)
        checks.resume(RecordRun(*run) for run in before.runs)
        writer = ItemWriter(self._source, self._block, advance, overflows, checks)
        writer.crcs += before.crcs
        target = file if digest is None else _Digesting(file, digest)
        nbytes = marked = before.nbytes
        for number, item in enumerate(items[before.items :], before.items + 1):
            writer.write(item, target)
            nbytes += item.length
            # Synced before it is noted: a note must not be on the disk before the bytes that it speaks of.
            if nbytes - marked >= MARK_BYTES and number < len(items) and file.sync():
                marked = nbytes
                mark = Written(
                    number, nbytes, overflows=dict(overflows), crcs=tuple(writer.crcs), **_as_fields(checks)
                )
                self._output.record(segment.file, mark, segment.part)
        found = digest.hex() if digest is not None else None
        return Written(len(items), nbytes, True, overflows, found, **_as_fields(checks))


def _as_fields(checks: StoredChecks) -> dict[str, Any]:
    return {"agreed": checks.agreed, "bare": checks.bare, "runs": checks.runs()}


class _Digesting:
    """Passes bytes on to a file, and takes their checksum."""

    def __init__(self, file: OutputFile, digest: Digest) -> None:
        self._file = file
        self._digest = digest

    def write(self, data: bytes | memoryview, /) -> object:
        """Append bytes."""
        self._digest.update(data)
        return self._file.write(data)
