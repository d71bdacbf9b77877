"""The archives that are written and read without torch, held against torch itself."""

from __future__ import annotations

import io
import zipfile
import zlib
from typing import TYPE_CHECKING

import pytest
import torch

from fsdp_migrate.checkpoint_convert.formats import zip_writer
from fsdp_migrate.checkpoint_convert.formats.zip_reader import TorchZip
from fsdp_migrate.checkpoint_convert.formats.zip_writer import tensor_archive
from tests.checkpoint.formats.raw_items import HERE, raw, sample
from tests.checkpoint.samples import open_zip


if TYPE_CHECKING:
    from pathlib import Path


SHAPES: list[tuple[int, ...]] = [(), (0,), (3,), (5, 7), (0, 3), (2, 3, 4, 5), (70_000,)]


def write(tensor: torch.Tensor) -> bytes:
    archive = tensor_archive(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
    data = raw(tensor)
    item = archive.head + data + archive.tail(zlib.crc32(data))
    assert (len(item), len(data)) == (archive.length, archive.payload)
    return item


@pytest.mark.alike
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", HERE)
def test_torch_loads_the_tensors_that_we_write(dtype: str, shape: tuple[int, ...]) -> None:
    tensor = sample(dtype, shape)
    item = write(tensor)
    loaded = torch.load(io.BytesIO(item), weights_only=True)
    assert (loaded.shape, loaded.dtype, loaded.stride()) == (shape, tensor.dtype, tensor.stride())
    assert raw(loaded) == raw(tensor)
    assert zipfile.ZipFile(io.BytesIO(item)).testzip() is None


@pytest.mark.parametrize("limit", [10, 200, 1000])
def test_archives_beyond_four_gigabytes_are_written_in_the_wide_form(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = torch.arange(400.0)
    monkeypatch.setattr(zip_writer, "_LIMIT32", limit)
    tensor_archive.cache_clear()
    archive = tensor_archive("float32", (400,))
    item = archive.head + raw(tensor) + archive.tail(zlib.crc32(raw(tensor)))
    assert len(item) == archive.length
    monkeypatch.undo()
    tensor_archive.cache_clear()
    # A real reader looks for 0xFFFFFFFF, so put that where the small limit stands.
    wide = item.replace(limit.to_bytes(4, "little"), b"\xff" * 4) if limit == 1000 else None
    if wide is not None:
        assert torch.equal(torch.load(io.BytesIO(wide), weights_only=True), tensor)
        assert open_zip(wide).read("data/0") == raw(tensor)


@pytest.mark.slow
def test_a_tensor_beyond_four_gigabytes_is_read_by_torch(tmp_path: Path) -> None:
    size = (1 << 32) + 64
    archive = tensor_archive("uint8", (size,))
    with (tmp_path / "item").open("wb") as file:
        file.write(archive.head)
        file.seek(size - 2, 1)
        file.write(b"\x05\x07")
        file.write(archive.tail(0))
    assert (tmp_path / "item").stat().st_size == archive.length
    loaded = torch.load(tmp_path / "item", weights_only=True, mmap=True)
    assert (loaded.shape, loaded[-1].item(), loaded[-2].item()) == ((size,), 7, 5)
    with (tmp_path / "item").open("rb") as item:

        def read(start: int, count: int) -> bytes:
            item.seek(start)
            return item.read(count)

        ours = TorchZip(read, 0, archive.length, where="an item")
        assert read(ours.position("data/0") + size - 1, 1) == b"\x07"
