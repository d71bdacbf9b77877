"""Read every stored item: is it whole, is it what the metadata says, and did torch save it corrupt?"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.formats.dcp_items import load_item, open_item, tensor_in
from fsdp_migrate.checkpoint_convert.formats.tensor_reader import (
    TensorSource,
    check_kind,
    describe_chunk,
    hold_same_bits,
)
from fsdp_migrate.checkpoint_convert.formats.whole_files import SAVED_SUFFIXES, open_whole_file
from fsdp_migrate.checkpoint_convert.formats.zip_check import check_archive
from fsdp_migrate.checkpoint_convert.manifest.manifest import BytesEntry, Chunk, Entry, Manifest, TensorEntry
from fsdp_migrate.checkpoint_convert.sources.equal_moments import find_equal_moments, shows_fault
from fsdp_migrate.checkpoint_convert.storage.threads import Advance, run_workers
from fsdp_migrate.errors import CheckpointFormatError, FSDPMigrateError, UnsafePickleError
from fsdp_migrate.findings import Finding, counted, in_lines, make_finding


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.checkpoint_convert.storage.folders import Folder
    from fsdp_migrate.checkpoint_convert.storage.progress import Progress

_BLOCK: Final = 8 << 20
_THREADS: Final = 2
_MAX_SHOWN: Final = 20


@dataclass(slots=True)
class ItemsCheck:
    """What reading every stored item has shown.

    Attributes:
        damages: What is wrong, by entry or file.
        findings: What there is to say about it otherwise.
        items: How many items and whole files were read.
        nbytes: The bytes that agree with a checksum.
        unprotected: The bytes that have none, so that only their place and size could be checked.
    """

    damages: dict[str, FSDPMigrateError] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    items: int = 0
    nbytes: int = 0
    unprotected: int = 0


@dataclass(frozen=True, slots=True)
class _Task:
    """One item, or a whole file."""

    key: str
    nbytes: int
    entry: Entry | None = None
    chunk: Chunk | None = None
    is_own: bool = True


def inspect_items(folder: Folder, manifest: Manifest, progress: Progress | None = None) -> Manifest:
    """Return the manifest with what reading every item has shown.

    Raises:
        CheckpointError: An item is damaged, or not what the metadata says. The message holds every one.
    """
    check = check_items(folder, manifest, progress)
    errors = list(check.damages.values())
    if len(errors) == 1:
        raise errors[0]
    if errors:
        shown = in_lines(errors, _MAX_SHOWN)
        msg = f"{manifest.source!r} is damaged ({counted(len(errors), 'problem')}):\n{shown}"
        raise CheckpointFormatError(msg, path=manifest.source)
    return replace(manifest, findings=(*manifest.findings, *check.findings))


def check_items(folder: Folder, manifest: Manifest, progress: Progress | None) -> ItemsCheck:
    """Read every stored item, and every file that holds entries as a whole.

    Args:
        folder: The checkpoint.
        manifest: What it holds.
        progress: Called with a :class:`ProgressEvent` now and then.
    """
    tasks = list(_tasks(folder, manifest))
    check = _Check(folder, manifest)
    run_workers(
        tasks,
        check.work,
        threads=_THREADS,
        total_bytes=sum(task.nbytes for task in tasks),
        message="checking",
        progress=progress,
    )
    result = check.result(tasks)
    # Moments are read for this, which damage would end with an error.
    if not result.damages:
        result.findings += _equal_moments(folder, manifest)
        items = counted(result.items, "item or file", "items and files")
        whole = f"{items}, {result.nbytes} bytes that agree with their checksums."
        result.findings.append(make_finding("FM270", manifest.source, whole))
    if result.unprotected:
        result.findings.append(
            make_finding(
                "FM271",
                manifest.source,
                f"{result.unprotected} bytes. Their places and sizes are right; a flipped bit in them cannot "
                "be seen.",
                "Convert with checksums, and keep `SHA256SUMS` with the output.",
            )
        )
    return result


def _tasks(folder: Folder, manifest: Manifest) -> Iterator[_Task]:
    """Yield the items of distributed checkpoints, and the other files whole."""
    # Files in which entries are no items of their own are read once, however many entries lie in them.
    whole: dict[str, None] = {}
    for entry in manifest.entries.values():
        if isinstance(entry, BytesEntry):
            if entry.inline is None:
                yield _Task(entry.key, entry.stored.length, entry)
            else:
                whole[entry.stored.file] = None
            continue
        for chunk in entry.chunks:
            if chunk.stored.raw is None:
                yield _Task(entry.key, chunk.stored.length, entry, chunk)
            else:
                whole[chunk.stored.file] = None
    for name in whole:
        if name in manifest.files:
            yield _Task(name, manifest.files[name])
    for name, size in manifest.extra_files.items():
        if name.endswith(SAVED_SUFFIXES) and not folder.leads_outside(name):
            yield _Task(name, size, is_own=False)


class _Check:
    """Checks tasks in several threads; what it finds is kept by the number of the task."""

    def __init__(self, folder: Folder, manifest: Manifest) -> None:
        self._folder = folder
        self._known = {found.subject for found in manifest.findings if found.code in ("FM209", "FM230")}
        # Appending is what threads can do at once without a lock.
        self._damages: list[tuple[_Task, FSDPMigrateError]] = []
        self._findings: list[Finding] = []
        self._sizes: list[tuple[int, int]] = []

    def work(self, task: _Task, advance: Advance) -> None:
        """Check one item or file; damage is noted, and no error."""
        done = 0

        def step(nbytes: int) -> None:
            nonlocal done
            done += nbytes
            advance(nbytes)

        try:
            if task.entry is None:
                self._sizes.append(self._file(task, step))
            else:
                self._sizes.append(self._item(task, step))
        except FSDPMigrateError as error:
            self._damages.append((task, error))
        # What a damaged item has not read counts as done: progress would not come to its end otherwise.
        advance(max(task.nbytes - done, 0))

    def result(self, tasks: list[_Task]) -> ItemsCheck:
        """Return what was found, in the order of the tasks."""
        order = {id(task): number for number, task in enumerate(tasks)}
        damages: dict[str, FSDPMigrateError] = {}
        for task, error in sorted(self._damages, key=lambda found: order[id(found[0])]):
            damages.setdefault(task.key, error)
        checked, unprotected = (sum(sizes) for sizes in zip((0, 0), *self._sizes, strict=True))
        findings = sorted(self._findings, key=lambda finding: finding.subject)
        return ItemsCheck(damages, findings, len(self._sizes), checked, unprotected)

    def _item(self, task: _Task, step: Advance) -> tuple[int, int]:
        entry, chunk = task.entry, task.chunk
        if isinstance(entry, TensorEntry) and chunk is not None:
            where = describe_chunk(self._folder, entry, chunk)
            archive = open_item(self._folder, chunk.stored, where=where)
            check_kind(tensor_in(archive, chunk.stored.file), entry, chunk, where=where)
            return check_archive(archive, step)
        assert isinstance(entry, BytesEntry)
        where = f"`{entry.key}` in '{self._folder.url}/{entry.stored.file}'"
        archive = open_item(self._folder, entry.stored, where=where)
        sizes = check_archive(archive, step)
        try:
            load_item(archive)
        except UnsafePickleError as error:
            if entry.key not in self._known:
                name = error.global_name or "an opcode that is not allowed"
                text = f"it asks for `{name}`, so it was not read."
                self._findings.append(make_finding("FM209", entry.key, text))
        return sizes

    def _file(self, task: _Task, step: Advance) -> tuple[int, int]:
        archive = open_whole_file(self._folder, task.key, task.nbytes, is_own=task.is_own)
        return (0, task.nbytes) if archive is None else check_archive(archive, step)


def _equal_moments(folder: Folder, manifest: Manifest) -> Iterator[Finding]:
    """Find moments of optimizers with the same bits, in those of which nothing was said yet."""
    told = {finding.subject for finding in manifest.findings if finding.code == "FM217"}
    parts = [part for part in manifest.parts if part.name not in told]

    def are_equal(first: TensorEntry, second: TensorEntry) -> bool:
        box = (0,) * len(first.shape), first.shape
        return hold_same_bits(folder, first, second, block_bytes=_BLOCK) and shows_fault(
            first.dtype, TensorSource(folder, _BLOCK).read(first, box)
        )

    return find_equal_moments(manifest.entries, parts, are_equal, "they have the same bits.")
