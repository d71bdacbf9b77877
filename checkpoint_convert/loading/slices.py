"""Read boxes of a checkpoint's tensors straight into the tensors that are to hold them, in a few threads.

Every item that is needed is found, and held against the metadata, before the first byte is read into place.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch

from fsdp_migrate.checkpoint_convert.formats.stored_checksums import StoredChecks
from fsdp_migrate.checkpoint_convert.formats.strided_reader import StridedReader
from fsdp_migrate.checkpoint_convert.formats.tensor_reader import TensorSource
from fsdp_migrate.checkpoint_convert.manifest.boxes import Box, intersect, paired_runs, row_major_strides
from fsdp_migrate.checkpoint_convert.manifest.dtypes import DTYPES
from fsdp_migrate.checkpoint_convert.storage.folders import Folder, is_url
from fsdp_migrate.checkpoint_convert.storage.threads import Advance, run_workers


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fsdp_migrate.checkpoint_convert.formats.dcp_items import TensorBytes
    from fsdp_migrate.checkpoint_convert.manifest.manifest import StoredRecord, TensorEntry
    from fsdp_migrate.checkpoint_convert.storage.progress import Progress


_BLOCK: Final = 4 << 20
_TASK: Final = 32 << 20
# Shorter runs than this, where there are several, are gathered from larger reads.
_LEAST_RUN: Final = 64 << 10
_REMOTE_THREADS: Final = 8
_MAX_THREADS: Final = 8
_THREADS_PER_CORE: Final = 2


@dataclass(frozen=True, slots=True)
class Slice:
    """A box of a stored tensor, and the tensor of its shape that is to hold it."""

    entry: TensorEntry
    box: Box
    target: torch.Tensor


@dataclass(slots=True)
class SliceCounts:
    """What was read: in all, agreeing with stored checksums, without any, and of records read in part."""

    nbytes: int = 0
    agreed: int = 0
    bare: int = 0
    partial: int = 0


class _Run(NamedTuple):
    """Bytes of a file that go into memory as they are; ``record`` where they are the whole of it."""

    file: str
    position: int
    view: memoryview
    record: StoredRecord | None
    is_partial: bool


@dataclass(slots=True)
class _Task:
    """What one thread does at a time."""

    nbytes: int = 0
    runs: list[_Run] = field(default_factory=list)
    slices: list[Slice] = field(default_factory=list)


def read_slices(
    folder: Folder,
    slices: Sequence[Slice],
    *,
    progress: Progress | None = None,
) -> SliceCounts:
    """Fill tensors with their boxes of a checkpoint; where the type differs, values are cast as torch does.

    Args:
        folder: The checkpoint.
        slices: What is read, and into what.
        progress: Called as the work gets on, in this thread.

    Raises:
        CheckpointFormatError: An item is damaged, or not what the metadata says. Where that shows without
            reading the elements, nothing has been changed.
    """
    tasks = list(_plan_tasks(folder, slices))
    counts = [SliceCounts() for _ in tasks]

    def work(number: int, advance: Advance) -> None:
        _do_task(folder, tasks[number], counts[number], advance)

    run_workers(
        range(len(tasks)),
        work,
        threads=max(min(len(tasks), thread_count(folder)), 1),
        total_bytes=sum(task.nbytes for task in tasks),
        message="loading",
        progress=progress,
    )
    names = ("nbytes", "agreed", "bare", "partial")
    return SliceCounts(**{name: sum(getattr(one, name) for one in counts) for name in names})


def thread_count(folder: Folder) -> int:
    """Return how many threads read from a folder: as many as this process has cores, more behind a URL."""
    if is_url(folder.url):
        return _REMOTE_THREADS
    cores = len(os.sched_getaffinity(0))
    # All cores of the node, which its ranks share. A launcher that binds a process gives it cores of its own.
    if cores == (os.cpu_count() or 1):
        cores = cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(min(_THREADS_PER_CORE * cores, _MAX_THREADS), 1)


def _plan_tasks(folder: Folder, slices: Sequence[Slice]) -> Iterator[_Task]:
    """Divide slices into pieces of work, in the order of the files."""
    source = TensorSource(folder, _BLOCK)
    runs: list[_Run] = []
    for one in slices:
        if math.prod(one.box[1]) == 0:
            continue
        direct = _direct_runs(source, one)
        if direct is None:
            yield _Task(_nbytes(one), slices=[one])
        else:
            runs += direct
    task = _Task()
    for run in sorted(runs, key=lambda run: run[:2]):
        if task.nbytes and task.nbytes + len(run.view) > _TASK:
            yield task
            task = _Task()
        task.runs.append(run)
        task.nbytes += len(run.view)
    if task.nbytes:
        yield task


def _nbytes(one: Slice) -> int:
    return math.prod(one.box[1]) * DTYPES[one.entry.dtype].itemsize


def _direct_runs(source: TensorSource, one: Slice) -> list[_Run] | None:
    """Return the runs of a slice whose bytes go into its tensor as they are; None where they do not."""
    dtype = getattr(torch, one.entry.dtype)
    target = one.target
    # Located all the same, here and below: what is damaged is to show before the first tensor is changed.
    if target.device.type != "cpu" or target.dtype != dtype or not target.is_contiguous():
        for chunk in source.chunks_near(one.entry, one.box):
            if intersect(one.box, (chunk.offsets, chunk.sizes)) is not None:
                source.locate(one.entry, chunk)
        return None
    itemsize = DTYPES[one.entry.dtype].itemsize
    whole = bytes_of(target)
    found: list[_Run] = []
    is_direct = True
    for chunk in source.chunks_near(one.entry, one.box):
        part = intersect(one.box, (chunk.offsets, chunk.sizes))
        if part is None:
            continue
        located = source.locate(one.entry, chunk)
        if located.strides is not None or _is_scattered(part, (chunk.offsets, chunk.sizes), itemsize):
            is_direct = False
            continue
        for start, place, count in paired_runs(part, (chunk.offsets, chunk.sizes), one.box):
            view = whole[place * itemsize : (place + count) * itemsize]
            found += _cut(located, start * itemsize, view)
    return found if is_direct else None


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the memory of a contiguous tensor on the CPU."""
    data: memoryview = tensor.detach().reshape(-1).view(torch.uint8).numpy().data
    return data


def _is_scattered(part: Box, chunk: Box, itemsize: int) -> bool:
    """Tell whether a part of a chunk lies in many short runs."""
    width = itemsize
    for size, of in zip(reversed(part[1]), reversed(chunk[1]), strict=True):
        width *= size
        if size != of:
            break
    return width < _LEAST_RUN and width < math.prod(part[1]) * itemsize


def _cut(located: TensorBytes, start: int, view: memoryview) -> Iterator[_Run]:
    """Yield the runs of a part of a stored tensor; a record that is read whole stays one run."""
    record, position = located.record, located.position + start
    if record is not None and (position, len(view)) == (record.position, record.size):
        yield _Run(located.file, position, view, record, is_partial=False)
        return
    for begin in range(0, len(view), _TASK):
        piece = view[begin : begin + _TASK]
        yield _Run(located.file, position + begin, piece, None, is_partial=record is not None)


def _do_task(folder: Folder, task: _Task, counts: SliceCounts, advance: Advance) -> None:
    checks = StoredChecks(folder)
    for run in task.runs:
        for begin in range(0, len(run.view), _BLOCK):
            block = run.view[begin : begin + _BLOCK]
            folder.read_into(run.file, run.position + begin, block)
            if run.record is not None or not run.is_partial:
                checks.saw(run.file, run.record, run.position + begin, block)
            advance(len(block))
        if run.is_partial:
            counts.partial += len(run.view)
        counts.nbytes += len(run.view)
    for one in task.slices:
        source = TensorSource(folder, _BLOCK, checks)
        _assemble(folder, source, one, advance)
        counts.nbytes += _nbytes(one)
    counts.agreed += checks.agreed
    counts.bare += checks.bare
    counts.partial += checks.join([])


def _assemble(folder: Folder, source: TensorSource, one: Slice, advance: Advance) -> None:
    """Fill a tensor whose bytes are not those of the file: cast, on a device, or from scattered elements."""
    scattered = _scattered_parts(source, one)
    if scattered is not None:
        whole = torch.empty(one.box[1], dtype=getattr(torch, one.entry.dtype))
        _gather(folder, one, scattered, whole)
        one.target.copy_(whole)
        advance(_nbytes(one))
        return
    flat = one.target.reshape(-1) if one.target.is_contiguous() else None
    kept = one.target.new_empty(math.prod(one.box[1])) if flat is None else flat
    done = 0
    for block in source.read(one.entry, one.box):
        values = torch.frombuffer(block, dtype=getattr(torch, one.entry.dtype))
        kept[done : done + values.numel()].copy_(values)
        done += values.numel()
        advance(len(block))
    if flat is None:
        one.target.copy_(kept.reshape(one.box[1]))


def _scattered_parts(source: TensorSource, one: Slice) -> list[tuple[Box, Box, TensorBytes]] | None:
    """Return the parts of a slice with their chunks, if one lies in many short runs."""
    itemsize = DTYPES[one.entry.dtype].itemsize
    found, is_scattered = [], False
    for chunk in source.chunks_near(one.entry, one.box):
        box = (chunk.offsets, chunk.sizes)
        part = intersect(one.box, box)
        if part is not None:
            located = source.locate(one.entry, chunk)
            if located.strides is not None:
                return None
            is_scattered = is_scattered or _is_scattered(part, box, itemsize)
            found.append((part, box, located))
    return found if is_scattered else None


def _gather(
    folder: Folder, one: Slice, parts: Sequence[tuple[Box, Box, TensorBytes]], whole: torch.Tensor
) -> None:
    """Bring columns of rows together by reads of many rows at once."""
    itemsize = DTYPES[one.entry.dtype].itemsize
    cells: Any = np.frombuffer(bytes_of(whole), np.dtype((np.void, itemsize))).reshape(one.box[1])
    for part, box, located in parts:
        strides = row_major_strides(box[1])
        start = sum((p - o) * s for p, o, s in zip(part[0], box[0], strides, strict=True))
        reader = StridedReader(folder, located.file, located.position, itemsize, strides)
        index = tuple(slice(p - b, p - b + n) for p, b, n in zip(part[0], one.box[0], part[1], strict=True))
        reader.read_into(cells[index], start)
