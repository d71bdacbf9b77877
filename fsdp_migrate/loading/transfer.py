"""Bring parts of stored tensors into memory: each rank reads its own, or one rank reads and sends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch
import torch.distributed as dist

from fsdp_migrate.checkpoint_convert.formats.tensor_reader import TensorSource
from fsdp_migrate.checkpoint_convert.loading.slices import Slice, SliceCounts, bytes_of, read_slices
from fsdp_migrate.checkpoint_convert.manifest.boxes import blocks, intersect
from fsdp_migrate.checkpoint_convert.storage.progress import ProgressEvent
from fsdp_migrate.torch_compat.devices import accelerator_type


if TYPE_CHECKING:
    from collections.abc import Sequence

    from fsdp_migrate.checkpoint_convert.loading.catalogue import Catalogue
    from fsdp_migrate.checkpoint_convert.storage.progress import Progress
    from fsdp_migrate.loading.offer import StoredTensor
    from fsdp_migrate.loading.peers import Peers
    from fsdp_migrate.loading.wanted import Place


PIECE_BYTES: Final = 32 << 20
"""How much is sent at once."""


@dataclass(frozen=True, slots=True)
class Job:
    """A stored tensor, and where this rank's part of it goes."""

    stored: StoredTensor
    place: Place


def read_jobs(catalogue: Catalogue, jobs: Sequence[Job], progress: Progress | None) -> SliceCounts:
    """Read this rank's parts.

    Raises:
        CheckpointError: The checkpoint is damaged, or has changed.
    """
    slices = [
        Slice(catalogue.tensors[job.stored.key].source, job.place.box, job.place.local.detach())
        for job in jobs
    ]
    counts = read_slices(catalogue.folder, slices, progress=progress)
    # Afterwards: what changes while it is read is found in no other way.
    catalogue.check_unchanged()
    return counts


def send_jobs(
    catalogue: Catalogue | None,
    jobs: Sequence[Job],
    peers: Peers,
    sender: int,
    progress: Progress | None,
) -> SliceCounts:
    """Read on one rank what any needs, and send it in pieces; a collective call with the same jobs.

    Where the rank that reads fails, it goes on sending, so that nobody waits for it, and raises at the end.

    Raises:
        CheckpointError: On the rank that reads: the checkpoint is damaged, or has changed.
    """
    group = peers.one_group()
    device = _device_of(group)
    source = None if catalogue is None else TensorSource(catalogue.folder, PIECE_BYTES)
    total = sum(_nbytes(job) for job in jobs)
    done, failure = 0, None
    for job in jobs:
        dtype = getattr(torch, job.stored.dtype)
        offsets = (0,) * len(job.stored.shape)
        for block in blocks((offsets, job.stored.shape), PIECE_BYTES // dtype.itemsize):
            piece = torch.empty(block[1], dtype=dtype)
            if piece.numel() == 0:
                continue
            # A rank that failed sends on what is in the piece: the others have counted on each broadcast, and
            # hear of the failure afterwards.
            if source is not None and catalogue is not None and failure is None:
                try:
                    entry = catalogue.tensors[job.stored.key].source
                    _read_piece(source.read(entry, block), piece)
                except Exception as error:
                    failure = error
            sent = piece.to(device)
            # As bytes: not every backend sends every dtype.
            dist.broadcast(sent.view(torch.uint8) if sent.ndim else sent, src=sender, group=group)
            _keep(sent, block, job)
            done += piece.numel() * dtype.itemsize
            if progress is not None:
                progress(ProgressEvent(done, total, "loading"))
    if failure is not None:
        raise failure
    if catalogue is not None:
        catalogue.check_unchanged()
    return SliceCounts(nbytes=total, partial=total)


def _read_piece(found: object, piece: torch.Tensor) -> None:
    view, at = bytes_of(piece), 0
    for data in found:  # type: ignore[attr-defined]  # an iterator of memoryviews
        view[at : at + len(data)] = data
        at += len(data)


def _keep(sent: torch.Tensor, block: tuple[tuple[int, ...], tuple[int, ...]], job: Job) -> None:
    """Copy what of a piece is this rank's into its place."""
    part = intersect(block, job.place.box)
    if part is None:
        return
    there = tuple(slice(p - b, p - b + n) for p, b, n in zip(part[0], block[0], part[1], strict=True))
    here = tuple(slice(p - b, p - b + n) for p, b, n in zip(part[0], job.place.box[0], part[1], strict=True))
    job.place.local.detach()[here].copy_(sent[there])


def _nbytes(job: Job) -> int:
    return int(torch.Size(job.stored.shape).numel()) * int(getattr(torch, job.stored.dtype).itemsize)


def _device_of(group: dist.ProcessGroup | None) -> torch.device:
    """Return where a group's backend sends from."""
    if "gloo" in str(dist.get_backend_config(group)):
        return torch.device("cpu")
    return torch.device(accelerator_type() or "cpu")
