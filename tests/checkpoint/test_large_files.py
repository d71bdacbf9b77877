"""Files of more than 4 GiB, which are holes but for what is read: no offset is cut to 32 bits."""

from __future__ import annotations

import json
import struct
import zipfile
import zlib
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors import safe_open

from fsdp_migrate.checkpoint_convert import convert_checkpoint, inspect_checkpoint, verify_checkpoints
from fsdp_migrate.checkpoint_convert.formats.dcp_metadata_writer import write_metadata
from fsdp_migrate.checkpoint_convert.formats.zip_writer import tensor_archive
from fsdp_migrate.checkpoint_convert.loading.catalogue import Catalogue
from fsdp_migrate.checkpoint_convert.loading.slices import Slice, read_slices
from fsdp_migrate.checkpoint_convert.manifest.manifest import Chunk, Stored, TensorEntry
from tests.checkpoint.samples import load_with_torch


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

FAR = (1 << 32) + 64
WANTED = torch.arange(1.0, 9.0)
DATA = WANTED.numpy().tobytes()


def test_a_saved_file(tmp_path: Path) -> None:
    """Torch's own zip64: the records behind the first one, and the directory, lie beyond 4 GiB."""
    file = tmp_path / "a.pt"
    state = {"ballast": {"b": torch.empty(FAR, dtype=torch.uint8)}, "model": {"w": torch.empty(8)}}
    with torch.serialization.skip_data():
        torch.save(state, file)
    with zipfile.ZipFile(file) as archive:
        header = archive.getinfo("a/data/1").header_offset
    with file.open("r+b") as opened:
        opened.seek(header + 26)
        opened.seek(header + 30 + sum(struct.unpack("<HH", opened.read(4))))
        opened.write(DATA)
    assert inspect_checkpoint(file).entries["ballast.b"].shape == (FAR,)  # type: ignore[union-attr]
    convert_checkpoint(file, tmp_path / "out", weights_only=True)
    assert torch.equal(load_with_torch(tmp_path / "out")["model"]["w"], WANTED)


@pytest.mark.parametrize("dtype", [None, "bf16"], ids=["relinked", "rewritten"])
def test_a_distributed_checkpoint(dtype: str | None, tmp_path: Path) -> None:
    source, archive = tmp_path / "source", tensor_archive("float32", (8,))
    source.mkdir()
    stored = [Stored("__0_0.distcp", offset, archive.length) for offset in (0, FAR)]
    with (source / "__0_0.distcp").open("wb") as opened:
        for piece, data in zip(stored, (bytes(len(DATA)), DATA), strict=True):
            opened.seek(piece.offset)
            opened.write(archive.head + data + archive.tail(zlib.crc32(data)))
    entries = [
        TensorEntry(
            f"model._orig_mod.{name}",
            ("model", f"_orig_mod.{name}"),
            "float32",
            (8,),
            (Chunk((0,), (8,), s),),
        )
        for name, s in zip("vw", stored, strict=True)
    ]
    (source / ".metadata").write_bytes(write_metadata(entries, checkpoint_id="x"))
    report = convert_checkpoint(source, tmp_path / "out", dtype=dtype)
    assert report.action == ("relink" if dtype is None else "rewrite")
    found = load_with_torch(tmp_path / "out")["model"]["w"]
    assert torch.equal(found, WANTED if dtype is None else WANTED.bfloat16())
    assert verify_checkpoints(source, tmp_path / "out", dtype=dtype).is_same


def test_safetensors(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    header = {
        "ballast": {"dtype": "U8", "shape": [FAR], "data_offsets": [0, FAR]},
        "w": {"dtype": "F32", "shape": [8], "data_offsets": [FAR, FAR + len(DATA)]},
    }
    text = json.dumps(header).encode()
    with file.open("wb") as opened:
        opened.write(struct.pack("<Q", len(text)) + text)
        opened.seek(FAR, 1)
        opened.write(DATA)
    with safe_open(file, "pt") as theirs:
        assert torch.equal(theirs.get_tensor("w"), WANTED)
    catalogue, found = Catalogue(str(file)), torch.empty(8)
    read_slices(catalogue.folder, [Slice(catalogue.tensors["w"].source, ((0,), (8,)), found)])
    catalogue.close()
    assert torch.equal(found, WANTED)
