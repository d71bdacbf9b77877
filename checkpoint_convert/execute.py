"""Carry a plan out: read, write, and check what was written."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from fsdp_migrate.checkpoint_convert.checksums import (
    CHECKSUMS_FILE,
    Digest,
    digest_file,
    write_checksums,
)
from fsdp_migrate.checkpoint_convert.file_writer import FileWriter
from fsdp_migrate.checkpoint_convert.identity import check_unchanged, conversion_identity
from fsdp_migrate.checkpoint_convert.items import open_value
from fsdp_migrate.checkpoint_convert.metadata import BytesEntry, InlineValue, Stored
from fsdp_migrate.checkpoint_convert.metadata_reader import METADATA_FILE, read_metadata
from fsdp_migrate.checkpoint_convert.metadata_writer import write_metadata
from fsdp_migrate.checkpoint_convert.nested import build_nested, pick_value, read_value
from fsdp_migrate.checkpoint_convert.outputs import Output, open_output
from fsdp_migrate.checkpoint_convert.pickle_strings import replace_strings
from fsdp_migrate.checkpoint_convert.placement import (
    CopyItem,
    Item,
    Placement,
    ValueKey,
    place,
)
from fsdp_migrate.checkpoint_convert.planned import PlannedValue
from fsdp_migrate.checkpoint_convert.safetensors_writer import INDEX_FILE
from fsdp_migrate.checkpoint_convert.storage import Folder, Location, open_folder
from fsdp_migrate.checkpoint_convert.torch_zip_writer import small_archive
from fsdp_migrate.checkpoint_convert.workers import Advance, run_workers
from fsdp_migrate.errors import OutputError
from fsdp_migrate.findings import Finding, make_finding


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fsdp_migrate.checkpoint_convert.journal import Written
    from fsdp_migrate.checkpoint_convert.plan import Action, ConversionPlan
    from fsdp_migrate.checkpoint_convert.progress import Progress


DEFAULT_BUFFER: Final = 64 << 20
_MAX_THREADS: Final = 4


@dataclass(frozen=True, slots=True)
class ConversionReport:
    """What a conversion did.

    Attributes:
        plan: What was to be done.
        action: How it was done; a plan of ``none`` with an output is a ``relink``.
        output: Where the result lies; None where nothing had to be written.
        bytes_written: The bytes of the data files that were written or copied.
        bytes_linked: The bytes of the data files that the result shares with the source.
        bytes_resumed: Those of ``bytes_written`` that an interrupted conversion had written already.
        findings: What there is to say about it.
    """

    plan: ConversionPlan
    action: Action
    output: str | None
    bytes_written: int
    bytes_linked: int
    findings: tuple[Finding, ...]
    bytes_resumed: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {
            **self.plan.as_dict(),
            "action": self.action,
            "output": self.output,
            "bytes_written": self.bytes_written,
            "bytes_linked": self.bytes_linked,
            "bytes_resumed": self.bytes_resumed,
            "findings": [finding.as_dict() for finding in self.findings],
        }


def execute_plan(
    plan: ConversionPlan,
    dst: Location,
    *,
    overwrite: bool = False,
    resume: bool = False,
    checksums: bool = False,
    progress: Progress | None = None,
    buffer_bytes: int = DEFAULT_BUFFER,
) -> ConversionReport:
    """Carry out a plan that :func:`plan_conversion` made.

    A plan whose action is ``none`` is carried out as ``relink``: the same entries under new metadata.

    Args:
        plan: The plan.
        dst: The folder to make.
        overwrite: Replace one that is there, once the new one is whole, and what is left of an interrupted
            conversion.
        resume: Go on where an interrupted conversion stopped, if there was one. An interrupt of this one
            then keeps what it did.
        checksums: Also write ``SHA256SUMS``, the checksum of each file. For it, linked files are read.
        progress: Called with a :class:`ProgressEvent` now and then, in this thread.
        buffer_bytes: How much of the data is held in memory at once, over all threads.

    Raises:
        OutputExistsError: ``dst`` is there already, or an interrupted conversion left something and neither
            ``overwrite`` nor ``resume`` was asked for.
        OutputError: It could not be written, or lies in the source, or another process is writing it, or what
            is to be resumed was another conversion. Nothing is left of it.
        CheckpointFormatError: The source turned out to be damaged, or has changed. Nothing is left of
            the output.
    """
    source = open_folder(plan.manifest.source)
    try:
        output = open_output(dst, source=plan.manifest.source, overwrite=overwrite, resume=resume)
        try:
            execution = _Execution(plan, source, output, progress, buffer_bytes, checksums=checksums)
            report = execution.run()
        except BaseException as error:
            # An interrupt is no reason to throw away what the user wants to go on with.
            output.abort(keep=resume and not isinstance(error, Exception))
            raise
    finally:
        source.close()
    return report


class _Execution:
    def __init__(
        self,
        plan: ConversionPlan,
        source: Folder,
        output: Output,
        progress: Progress | None,
        buffer_bytes: int,
        *,
        checksums: bool,
    ) -> None:
        self._plan = plan
        self._source = source
        self._output = output
        self._progress = progress
        self._buffer = buffer_bytes
        self._checksums = checksums
        self._copied: list[str] = []
        self._written: Mapping[str, Written] = {}

    def run(self) -> ConversionReport:
        """Write everything, the metadata last, and put it in its place."""
        placement = place(self._plan, _new_values(self._plan, self._source))
        check_unchanged(self._plan.manifest, self._source)
        closing = _closing_files(self._plan, placement, self._output)
        identity = conversion_identity(
            self._plan, placement, b"".join(closing.values()), checksums=self._checksums
        )
        if self._output.begin(identity):
            linked = self._linked_bytes(placement)
            self._output.commit()
            return self._report(placement.files, linked, resumed=placement.nbytes)
        linked = self._share_files(placement)
        files = {**placement.files, **self._whole_copies(placement)}
        resumed = sum(self._output.written(name).nbytes for name in files)
        self._write_files(files)
        if self._checksums:
            self._write_checksums(placement, closing)
        for name, data in closing.items():
            with self._output.create(name) as file:
                file.write(data)
        check_unchanged(self._plan.manifest, self._source)
        self._output.commit()
        return self._report(files, linked, resumed=resumed)

    def _report(self, files: Mapping[str, Sequence[Item]], linked: int, *, resumed: int) -> ConversionReport:
        return ConversionReport(
            plan=self._plan,
            action="relink" if self._plan.action == "none" else self._plan.action,
            output=self._output.url,
            bytes_written=sum(item.length for items in files.values() for item in items),
            bytes_linked=linked,
            findings=(*self._plan.findings, *self._own_findings()),
            bytes_resumed=resumed,
        )

    def _linked_bytes(self, placement: Placement) -> int:
        return sum(self._plan.manifest.files[name] for name in placement.taken)

    def _share_files(self, placement: Placement) -> int:
        """Share data files with the source where that can be; return how many bytes are shared."""
        linked = 0
        for name, as_name in placement.taken.items():
            if self._plan.link != "copy" and self._output.share(self._source, name, as_name):
                linked += self._plan.manifest.files[name]
            elif self._plan.link == "hard":
                msg = (
                    f"'{self._source.url}/{name}' cannot be linked into {self._output.url!r}: they lie on "
                    "different file systems, or links are not allowed there. Use link='copy' or 'auto'."
                )
                raise OutputError(msg, path=f"{self._output.url}/{as_name}")
            else:
                self._copied.append(name)
        return linked

    def _whole_copies(self, placement: Placement) -> dict[str, Sequence[Item]]:
        """Return the files that are copied whole: data that cannot be shared, and the user's other files.

        The latter are copied even where data files are linked, because people edit such files in place.
        """
        manifest = self._plan.manifest
        sizes = {**manifest.files, **manifest.extra_files}
        names = {placement.taken[name]: name for name in self._copied}
        extra = (n for n in self._plan.extra_files if not self._source.leads_outside(n))
        names.update({name: name for name in extra})
        return {
            as_name: [CopyItem(Stored(name, 0, sizes[name]), sizes[name])] for as_name, name in names.items()
        }

    def _write_files(self, files: Mapping[str, Sequence[Item]]) -> None:
        threads = max(min(len(files), os.cpu_count() or 1, _MAX_THREADS), 1)
        writer = FileWriter(self._source, self._output, self._buffer // threads, checksums=self._checksums)

        run_workers(
            files,
            lambda name, advance: writer.write(name, files[name], advance),
            threads=threads,
            total_bytes=sum(item.length for items in files.values() for item in items),
            message="writing",
            progress=self._progress,
        )
        self._written = writer.results

    def _write_checksums(self, placement: Placement, closing: Mapping[str, bytes]) -> None:
        """Write the checksums of all files; those that are linked are read for it."""
        digests = {name: written.digest or "" for name, written in self._written.items()}
        linked = {new: old for old, new in placement.taken.items() if new not in digests}

        def work(name: str, advance: Advance) -> None:
            size = self._plan.manifest.files[linked[name]]
            digests[name] = digest_file(self._source, linked[name], size, advance)

        run_workers(
            linked,
            work,
            threads=max(min(len(linked), os.cpu_count() or 1, _MAX_THREADS), 1),
            total_bytes=sum(self._plan.manifest.files[name] for name in linked.values()),
            message="taking checksums",
            progress=self._progress,
        )
        for name, data in closing.items():
            own = Digest()
            own.update(data)
            digests[name] = own.hex()
        with self._output.create(CHECKSUMS_FILE) as file:
            file.write(write_checksums(digests))

    def _own_findings(self) -> list[Finding]:
        overflows: Counter[str] = Counter()
        for written in self._written.values():
            overflows.update(written.overflows)
        found = [
            make_finding("FM206", key, f"{count} values.", "Use bf16 or fp32.")
            for key, count in sorted(overflows.items())
        ]
        outside = [n for n in self._plan.extra_files if self._source.leads_outside(n)]
        if outside:
            names = ", ".join(f"`{name}`" for name in outside)
            found.append(make_finding("FM212", self._source.url, f"{names}: links to something outside."))
        if self._copied and self._plan.link == "auto":
            names = ", ".join(f"`{name}`" for name in self._copied[:8])
            found.append(make_finding("FM218", self._source.url, f"{names}."))
        return found


def _closing_files(plan: ConversionPlan, placement: Placement, output: Output) -> dict[str, bytes]:
    """Return what is written last, and says what the rest is: metadata, read again, or an index."""
    if placement.index is not None:
        return {INDEX_FILE: placement.index}
    sizes = {new: plan.manifest.files[old] for old, new in placement.taken.items()}
    for name, items in placement.files.items():
        sizes[name] = sum(item.length for item in items)
    found: dict[str, bytes] = {}
    for folder, entries in placement.volumes.items():
        start = f"{folder}/" if folder else ""
        data = write_metadata(entries, checkpoint_id=f"{output.checkpoint_id}/{folder}".rstrip("/"))
        own = {name.removeprefix(start): size for name, size in sizes.items() if name.startswith(start)}
        read = read_metadata(data, own, where=f"{output.url}/{start}{METADATA_FILE}")
        if tuple(read.entries.values()) != entries:
            raise AssertionError("The metadata that was written does not say what was planned.")
        found[f"{start}{METADATA_FILE}"] = data
    return found


def _new_values(plan: ConversionPlan, source: Folder) -> dict[ValueKey, bytes]:
    """Return the bytes of what changes, or is no item yet, and of the files beside the data."""
    values: dict[ValueKey, bytes] = {}
    for entry in plan.entries:
        if isinstance(entry, PlannedValue) and entry.is_new:
            values[entry.folder, entry.key] = _new_value(entry, source)
    for file in plan.files:
        made = BytesEntry(file.name, None, Stored(file.name, 0, 0), InlineValue(build_nested(file, source)))
        archive = open_value(source, made, where=f"`{file.name}`")
        values["", file.name] = small_archive({name: archive.read(name) for name in archive.records})
    return values


def _new_value(entry: PlannedValue, source: Folder) -> bytes:
    where = f"`{entry.source.key}` in {source.url!r}"
    stored = entry.source
    if entry.pick:
        found = pick_value(read_value(source, stored, where=where), entry.pick, where=where)
        stored = replace(stored, inline=InlineValue(found))
    archive = open_value(source, stored, where=where)
    contents = {name: archive.read(name) for name in archive.records}
    contents["data.pkl"] = replace_strings(contents["data.pkl"], entry.names, where=where)
    return small_archive(contents)
