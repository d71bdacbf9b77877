"""The private memory of a conversion has a bound, however large a tensor is."""

from __future__ import annotations

import gzip
import json
import shutil
import struct
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch

from fsdp_migrate.checkpoint_convert.formats.dcp_metadata_writer import write_metadata
from fsdp_migrate.checkpoint_convert.formats.zip_writer import tensor_archive
from fsdp_migrate.checkpoint_convert.manifest.manifest import Chunk, Stored, TensorEntry
from fsdp_migrate.checkpoint_convert.targets.frameworks import TARGETS
from tests.ranks import ROOT


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


pytestmark = pytest.mark.any_torch


MIB = 1 << 20
BUFFER = 16
ROWS, COLUMNS = 12800, 4096  # 200 MiB as float32
# Beside what the same work takes for a small source. Less than the 512 MiB and a buffer that are promised,
# so that one copy of these 200 MiB breaks it.
BOUND = 90


def distributed(folder: Path, rows: int = ROWS) -> Path:
    """Make a distributed checkpoint of 2 ranks, of zeros that take no room on the disk."""
    folder.mkdir(parents=True)
    half = (rows // 2, COLUMNS)
    archive, chunks = tensor_archive("float32", half), []
    for rank in range(2):
        with (folder / f"__{rank}_0.distcp").open("wb") as file:
            file.write(archive.head)
            file.seek(archive.payload, 1)
            file.write(archive.tail(0))
        at = Stored(f"__{rank}_0.distcp", 0, archive.length)
        chunks.append(Chunk((rank * half[0], 0), half, at))
    entry = TensorEntry("model.weight", ("model", "weight"), "float32", (rows, COLUMNS), tuple(chunks))
    (folder / ".metadata").write_bytes(write_metadata([entry], checkpoint_id="x"))
    return folder


def transposed(path: Path) -> Path:
    """Make a file of torch.save whose one tensor is the transpose of what is stored."""
    torch.save({"model": {"weight": torch.zeros(64, ROWS * 64).t()}}, path)
    return path


def full(path: Path) -> Path:
    """Make a file of torch.save, of zeros that take no room on the disk."""
    with torch.serialization.skip_data():
        torch.save({"model": {"weight": torch.empty(ROWS, COLUMNS)}}, path)
    return path


def before_zip(path: Path) -> Path:
    """Make a file of torch.save in the format before torch 1.6."""
    state = {"model": {"weight": torch.zeros(ROWS, COLUMNS)}}
    torch.save(state, path, _use_new_zipfile_serialization=False)
    return path


def compressed(path: Path) -> Path:
    """Make a compressed file of torch.save, as Composer does."""
    plain = full(path.with_name("plain.pt"))
    with plain.open("rb") as file, gzip.open(path.with_name("packed.pt.gz"), "wb", compresslevel=1) as packed:
        shutil.copyfileobj(file, packed, 4 << 20)
    plain.unlink()
    return path.with_name("packed.pt.gz")


def safetensors(path: Path) -> Path:
    """Make a safetensors file of zeros that take no room on the disk."""
    end = 4 * ROWS * COLUMNS
    weight = {"dtype": "F32", "shape": [ROWS, COLUMNS], "data_offsets": [0, end]}
    header = json.dumps({"model.weight": weight}).encode()
    path = path.with_name("model.safetensors")
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(file.tell() + end)
    return path


def accelerate(path: Path) -> Path:
    """Make a folder of Accelerate, SHARDED_STATE_DICT on 2 ranks."""
    folder = path.with_name("accelerate")
    distributed(folder / "pytorch_model_fsdp_0")
    return folder


def peaks(jobs: list[tuple[Path, dict[str, Any]]], tmp_path: Path) -> list[int]:
    """Convert one after the other in a process of their own; return the private memory that each took."""
    shown = json.dumps([(str(source), options) for source, options in jobs])
    small = distributed(tmp_path / "small", rows=16)
    done = subprocess.run(
        [sys.executable, "-m", "tests.checkpoint.peak_memory", str(tmp_path / "out"), str(small), shown],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[int] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("make", [full, transposed, before_zip, compressed, safetensors, accelerate])
def test_no_source_is_ever_in_memory_as_a_whole(make: Callable[[Path], Path], tmp_path: Path) -> None:
    source = make(tmp_path / "a.pt")
    ways: list[dict[str, Any]] = [{"to": "hf"}, {"to": "torch", "world_size": 3}]
    ways.append({**ways[1], "dtype": "bf16"})
    found = peaks([(source, {**way, "buffer_bytes": BUFFER * MIB}) for way in ways], tmp_path)
    assert max(found) <= BOUND * MIB, found


def test_no_target_ever_has_the_whole_in_memory(tmp_path: Path) -> None:
    source = distributed(tmp_path / "source")
    distributed_ones = [to for to, target in TARGETS.items() if target.is_distributed]
    ways: list[dict[str, Any]] = [{"to": to, "world_size": 8, "checksums": True} for to in distributed_ones]
    ways += [{"to": to} for to in TARGETS if to not in distributed_ones]
    ways.append({"to": "accelerate", "form": "full"})
    jobs = [(source, {**way, "buffer_bytes": BUFFER * MIB}) for way in ways]
    found = peaks(jobs, tmp_path)
    assert max(found) <= BOUND * MIB, list(zip(ways, found, strict=True))
