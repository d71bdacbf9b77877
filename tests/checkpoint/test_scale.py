"""The work for metadata grows no faster than the number of chunks, counted in calls rather than seconds."""

from __future__ import annotations

import sys
import zlib
from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.checkpoint_convert import convert_checkpoint, inspect_checkpoint
from fsdp_migrate.checkpoint_convert.formats.dcp_metadata_writer import write_metadata
from fsdp_migrate.checkpoint_convert.formats.zip_writer import tensor_archive
from fsdp_migrate.checkpoint_convert.manifest.manifest import Chunk, Stored, TensorEntry


if TYPE_CHECKING:
    from pathlib import Path
    from types import FrameType


pytestmark = [pytest.mark.any_torch, pytest.mark.slow]


RANKS = 64


def wide_checkpoint(folder: Path, tensors: int) -> Path:
    """Make what ``RANKS`` ranks would have saved of tensors of one row per rank; the data take no room."""
    folder.mkdir()
    archive = tensor_archive("bfloat16", (1, 1))
    ends, entries = [0] * RANKS, []
    for number in range(tensors):
        path = ("model", f"layers.{number}.weight")
        chunks = []
        for rank in range(RANKS):
            chunks.append(Chunk((rank, 0), (1, 1), Stored(f"__{rank}_0.distcp", ends[rank], archive.length)))
            ends[rank] += archive.length
        entries.append(TensorEntry(".".join(path), path, "bfloat16", (RANKS, 1), tuple(chunks)))
    item = archive.head + b"\0\0" + archive.tail(zlib.crc32(b"\0\0"))
    for rank in range(RANKS):
        with (folder / f"__{rank}_0.distcp").open("wb") as file:
            file.write(item)
            file.truncate(ends[rank])
    (folder / ".metadata").write_bytes(write_metadata(entries, checkpoint_id="x"))
    return folder


def calls(source: Path, out: Path) -> int:
    """Return how many functions are called to inspect and relink a checkpoint, Python's and C's."""
    count = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        assert convert_checkpoint(source, out).bytes_linked > 0
    finally:
        sys.setprofile(None)
    return count


def test_calls_grow_no_faster_than_chunks(tmp_path: Path) -> None:
    few, many = wide_checkpoint(tmp_path / "few", 16), wide_checkpoint(tmp_path / "many", 64)
    inspect_checkpoint(few)  # what is imported and kept on first use
    ours, theirs = calls(few, tmp_path / "few-out"), calls(many, tmp_path / "many-out")
    assert theirs <= 4.2 * ours
