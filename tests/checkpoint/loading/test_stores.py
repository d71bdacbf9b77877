"""Where a checkpoint lies and how large it is: requests to a store, and memory for a terabyte."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch

from fsdp_migrate import load_checkpoint
from fsdp_migrate.checkpoint_convert.formats.dcp_metadata_writer import write_metadata
from fsdp_migrate.checkpoint_convert.formats.zip_writer import tensor_archive
from fsdp_migrate.checkpoint_convert.loading.catalogue import Catalogue
from fsdp_migrate.checkpoint_convert.loading.slices import Slice, read_slices
from fsdp_migrate.checkpoint_convert.manifest.manifest import Chunk, Stored, TensorEntry
from fsdp_migrate.errors import CheckpointFormatError, CheckpointReadError
from tests.checkpoint.loading.stores import MIB, URL, model_and_optimizer, save_run
from tests.checkpoint.peak_memory import peak, private_bytes
from tests.checkpoint.s3_service import BUCKET, S3, Answer, Between, Request


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


pytestmark = pytest.mark.slow


@pytest.mark.s3
@pytest.mark.parametrize("how", ["is gone", "has changed"])
def test_what_changes_in_a_store_while_it_is_read_is_refused(
    how: str, s3: S3, between: Between, tmp_path: Path
) -> None:
    folder, _ = save_run(tmp_path, "folder")
    s3.put(folder, "run")
    reads = 0
    left = [".metadata", "__0_0.distcp"]
    changing = threading.Lock()

    def meanwhile(request: Request, ask: Callable[[], Answer]) -> Answer:
        nonlocal reads
        reads += request.method == "GET" and request.key.endswith(".distcp")
        if request.method == "HEAD" and reads:
            # Each once: another request, which comes beside this one, must not find a file deleted.
            with changing:
                while left:
                    name = left.pop()
                    s3.client.delete_object(Bucket=BUCKET, Key=f"run/{name}")
                    if how == "has changed":
                        # Of the same size, as the next save of the same run is.
                        data = (folder / name).read_bytes()[:-1] + b"?"
                        s3.client.put_object(Bucket=BUCKET, Key=f"run/{name}", Body=data)
        return ask()

    between.fault = meanwhile
    model, optimizer = model_and_optimizer()
    with pytest.raises(CheckpointFormatError, match=f"{how}.*being written"):
        load_checkpoint(URL, model, optimizer)
    assert not optimizer.state


@pytest.mark.s3
@pytest.mark.parametrize(("status", "code"), [(503, "ServiceUnavailable"), (403, "AccessDenied")])
def test_an_error_of_a_store_is_never_read_as_absence(
    status: int, code: str, s3: S3, between: Between, tmp_path: Path
) -> None:
    """From each request on, one after the other, all are refused."""
    folder, saved = save_run(tmp_path, "folder")
    s3.put(folder, "run")
    torch.save(saved.state_dict(), tmp_path / "weights.pt")
    s3.client.upload_file(str(tmp_path / "weights.pt"), BUCKET, "other/weights.pt")
    requests = refused = 0

    def refuse(request: Request, ask: Callable[[], Answer]) -> Answer:
        nonlocal requests
        requests += 1
        return ask() if requests <= refused else ask().replaced(status, code)

    between.fault = refuse
    for url in (URL, f"s3://{BUCKET}/other/weights.pt", f"s3://{BUCKET}/other"):
        refused = 0
        model, _ = model_and_optimizer()
        while True:
            requests = 0
            with contextlib.suppress(CheckpointReadError):
                load_checkpoint(url, model, weights_only=True)
            if requests <= refused:
                break
            refused += 1
        assert refused > 3, url
        assert torch.equal(model.state_dict()["0.weight"], saved.state_dict()["0.weight"])


FILES, TENSORS, SHAPE = 64, 4, (1 << 20, 1024)
"""A tensor of 4 GiB for each of four places in each of 64 files."""


def sparse_checkpoint(folder: Path) -> int:
    """Write a checkpoint of a terabyte that is holes but for what frames its tensors; return its size."""
    folder.mkdir()
    archive = tensor_archive("float32", SHAPE)
    entries, total = [], 0
    for number in range(FILES):
        file = folder / f"__{number}_0.distcp"
        with file.open("wb") as out:
            for place in range(TENSORS):
                key = f"layers.{number * TENSORS + place}.weight"
                start = place * archive.length
                os.pwrite(out.fileno(), archive.head, start)
                payload = start + len(archive.head)
                os.pwrite(out.fileno(), mark(key).numpy().tobytes(), payload)
                os.pwrite(out.fileno(), mark(key).numpy().tobytes(), payload + archive.payload - 4 * SHAPE[1])
                os.pwrite(out.fileno(), archive.tail(0), payload + archive.payload)
                stored = Stored(file.name, start, archive.length)
                chunks = (Chunk((0, 0), SHAPE, stored),)
                entries.append(TensorEntry(f"model.{key}", ("model", key), "float32", SHAPE, chunks))
        total += file.stat().st_size
    (folder / ".metadata").write_bytes(write_metadata(entries, checkpoint_id="x"))
    return total


def mark(key: str) -> torch.Tensor:
    """Return the first and the last row of a tensor."""
    return torch.arange(SHAPE[1]) + float(key.split(".")[1])


@pytest.mark.any_torch
def test_a_terabyte_is_planned_and_its_ends_are_loaded_in_little_memory(tmp_path: Path) -> None:
    assert sparse_checkpoint(tmp_path / "run") > 10**12
    assert sum(path.stat().st_blocks * 512 for path in (tmp_path / "run").iterdir()) < 20 * MIB
    rows = 512
    found: dict[str, Any] = {}

    def load() -> None:
        catalogue = Catalogue(tmp_path / "run")
        for name, first in (("layers.0.weight", 0), ("layers.255.weight", SHAPE[0] - rows)):
            found[name] = torch.empty(rows, SHAPE[1])
            entry = catalogue.tensors[f"model.{name}"].source
            read_slices(catalogue.folder, [Slice(entry, ((first, 0), (rows, SHAPE[1])), found[name])])
        catalogue.check_unchanged()
        catalogue.close()

    before = private_bytes()
    assert peak(load) - before < 64 * MIB
    assert torch.equal(found["layers.0.weight"][0], mark("layers.0.weight"))
    assert torch.equal(found["layers.255.weight"][-1], mark("layers.255.weight"))
    assert not found["layers.255.weight"][:-1].any()
