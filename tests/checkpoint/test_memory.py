"""The private memory of a conversion has a bound, however large a tensor is."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch

from fsdp_migrate.checkpoint_convert.metadata import Chunk, Stored, TensorEntry
from fsdp_migrate.checkpoint_convert.metadata_writer import write_metadata
from fsdp_migrate.checkpoint_convert.torch_zip_writer import tensor_archive
from tests.ranks import ROOT


if TYPE_CHECKING:
    from pathlib import Path


MIB = 1 << 20
BUFFER = 64
ROWS, COLUMNS = 40960, 4096  # 640 MiB as float32


def distributed(folder: Path) -> Path:
    """Make a distributed checkpoint of one tensor in one chunk, of zeros that take no room on the disk."""
    folder.mkdir()
    archive = tensor_archive("float32", (ROWS, COLUMNS))
    with (folder / "__0_0.distcp").open("wb") as file:
        file.write(archive.head)
        file.seek(archive.payload, 1)
        file.write(archive.tail(0))
    chunk = Chunk((0, 0), (ROWS, COLUMNS), Stored("__0_0.distcp", 0, archive.length))
    entry = TensorEntry("model.weight", ("model", "weight"), "float32", (ROWS, COLUMNS), (chunk,))
    (folder / ".metadata").write_bytes(write_metadata([entry], checkpoint_id="x"))
    return folder


def one_file(path: Path) -> Path:
    """Make a file of torch.save whose one tensor is the transpose of what is stored."""
    torch.save({"model": {"weight": torch.zeros(64, ROWS * 64).t()}}, path)
    return path


@pytest.mark.parametrize(
    ("kind", "options"),
    [("distributed", {"dtype": "bf16", "world_size": 3}), ("one file", {"dtype": "bf16", "world_size": 3})],
)
def test_private_memory_has_a_bound(kind: str, options: dict[str, Any], tmp_path: Path) -> None:
    source = distributed(tmp_path / "a") if kind == "distributed" else one_file(tmp_path / "a.pt")
    arguments = [str(source), str(tmp_path / "out"), json.dumps({**options, "buffer_bytes": BUFFER * MIB})]
    done = subprocess.run(
        [sys.executable, "-m", "tests.checkpoint.peak_memory", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / ".metadata").exists()
    assert int(done.stdout) <= (512 + BUFFER) * MIB
