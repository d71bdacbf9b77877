"""Read every stored item: is it whole, is it what the metadata says, and did torch save it corrupt?"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from fsdp_migrate.checkpoint_convert.items import load_item, open_item, tensor_in
from fsdp_migrate.checkpoint_convert.metadata import BytesEntry, Chunk, Entry, Manifest, TensorEntry
from fsdp_migrate.checkpoint_convert.parts import entry_path
from fsdp_migrate.checkpoint_convert.saved_file import ZIP_START
from fsdp_migrate.checkpoint_convert.tensor_stream import TensorSource, check_kind, describe_chunk
from fsdp_migrate.checkpoint_convert.torch_zip import TorchZip
from fsdp_migrate.checkpoint_convert.workers import Advance, run_workers
from fsdp_migrate.checkpoint_convert.zip_check import check_archive
from fsdp_migrate.errors import (
    CheckpointFormatError,
    FSDPMigrateError,
    UnsafePickleError,
    UnsupportedFeatureError,
)
from fsdp_migrate.findings import Finding, make_finding


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.checkpoint_convert.progress import Progress
    from fsdp_migrate.checkpoint_convert.storage import Folder

_BLOCK: Final = 8 << 20
_THREADS: Final = 2
_MAX_SHOWN: Final = 20
# What people carry along that torch.save may have written.
_SAVED_SUFFIXES: Final = (".pt", ".pth", ".bin", ".ckpt", ".pkl")
# What the directory at the end of an archive of torch.save has; one byte that changed spoils one of these.
_SAVED_MARKS: Final = (b"/data.pkl", b"/version", b"PK\x01\x02", b"PK\x05\x06")
_TAIL: Final = 64 << 10
# The end record of a zip file (APPNOTE 4.3.16), and what ZIP64 puts before it.
_END: Final = b"PK\x05\x06"
_END_BYTES: Final = 22
_ZIP64_BYTES: Final = 56 + 20


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
        shown = "\n".join(f"  {error}" for error in errors[:_MAX_SHOWN])
        more = f"\n  and {len(errors) - _MAX_SHOWN} more" * (len(errors) > _MAX_SHOWN)
        msg = f"{manifest.source!r} is damaged ({len(errors)} problems):\n{shown}{more}"
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
    if not result.damages:
        result.findings += _equal_moments(TensorSource(folder, _BLOCK), manifest)
        whole = f"{result.items} items and files, {result.nbytes} bytes that agree with their checksums."
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
        if name.endswith(_SAVED_SUFFIXES) and not folder.leads_outside(name):
            yield _Task(name, size, is_own=False)


class _Check:
    """Checks tasks in several threads; what it finds is kept by the number of the task."""

    def __init__(self, folder: Folder, manifest: Manifest) -> None:
        self._folder = folder
        self._known = {names.key for names in manifest.name_lists if names.names is None}
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
                text = f"it asks for `{name}`, so it was not looked into."
                self._findings.append(make_finding("FM209", entry.key, text))
        return sizes

    def _file(self, task: _Task, step: Advance) -> tuple[int, int]:
        start = self._folder.read(task.key, 0, min(task.nbytes, len(ZIP_START)))
        if start != ZIP_START and not self._ends_as_saved(task):
            return 0, task.nbytes
        try:
            archive = TorchZip(
                lambda offset, length: self._folder.read(task.key, offset, length),
                0,
                task.nbytes,
                where=f"'{self._folder.url}/{task.key}'",
            )
        except (CheckpointFormatError, UnsupportedFeatureError):
            if task.is_own or self._ends_as_saved(task):
                raise
            # Somebody's own archive, of another kind.
            return 0, task.nbytes
        return check_archive(archive, step)

    def _ends_as_saved(self, task: _Task) -> bool:
        """Tell whether a file ends as torch.save ends an archive, even if one byte of the file is damaged."""
        length = min(task.nbytes, _TAIL)
        tail = self._folder.read(task.key, task.nbytes - length, length)
        found = sum(mark in tail for mark in _SAVED_MARKS)
        return found >= len(_SAVED_MARKS) - 1 and not self._begins_later(task, tail)

    def _begins_later(self, task: _Task, tail: bytes) -> bool:
        """Tell whether the last archive begins within the file, after others: data of a checkpoint."""
        at = tail.rfind(_END)
        if at < 0 or at + _END_BYTES > len(tail):
            return False
        size, offset = struct.unpack_from("<II", tail, at + 12)
        end = task.nbytes - len(tail) + at
        starts = (end - size - offset - between for between in (0, _ZIP64_BYTES))
        return any(
            start > 0 and self._folder.read(task.key, start, len(ZIP_START)) == ZIP_START for start in starts
        )


def _equal_moments(source: TensorSource, manifest: Manifest) -> Iterator[Finding]:
    """Find what torch does to full optimizer state on CPU: one moment saved as both."""
    entries = {entry_path(entry): entry for entry in manifest.tensors}
    told = {finding.subject for finding in manifest.findings if finding.code == "FM217"}
    for part in manifest.parts:
        if part.kind != "optimizer" or part.name in told:
            continue
        pairs = [
            (first, second)
            for path, first in entries.items()
            if path[: len(part.prefix)] == part.prefix
            and str(path[-1]).endswith("exp_avg")
            and (second := entries.get((*path[:-1], f"{path[-1]}_sq"))) is not None
        ]
        equal = [first.key for first, second in pairs if _are_equal(source, first, second)]
        if equal:
            yield make_finding(
                "FM217",
                part.name,
                f"{len(equal)} of {len(pairs)} parameters, such as `{equal[0]}`. torch does that to a "
                "full optimizer state on CPU with offload_to_cpu=True.",
                "Save it again with offload_to_cpu=False, or SHARDED_STATE_DICT.",
            )


def _are_equal(source: TensorSource, first: TensorEntry, second: TensorEntry) -> bool:
    if (first.shape, first.dtype) != (second.shape, second.dtype) or len(first.chunks) != len(second.chunks):
        return False
    box = (0,) * len(first.shape), first.shape
    other = TensorSource(source.folder, _BLOCK)
    is_zero = True
    for one, two in zip(source.read(first, box), other.read(second, box), strict=True):
        if not np.array_equal(np.frombuffer(one, np.uint8), np.frombuffer(two, np.uint8)):
            return False
        is_zero = is_zero and not np.frombuffer(one, np.uint8).any()
    return not is_zero
