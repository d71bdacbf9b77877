"""Where a checkpoint lies and how large it is: requests to a store, and memory for a terabyte."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import fsspec
import pytest
import torch
from torch import nn

from fsdp_migrate import load_checkpoint
from fsdp_migrate.checkpoint_convert.formats.dcp_metadata_writer import write_metadata
from fsdp_migrate.checkpoint_convert.formats.zip_writer import tensor_archive
from fsdp_migrate.checkpoint_convert.loading.catalogue import Catalogue
from fsdp_migrate.checkpoint_convert.loading.slices import Slice, read_slices
from fsdp_migrate.checkpoint_convert.manifest.manifest import Chunk, Stored, TensorEntry
from fsdp_migrate.checkpoint_convert.storage.block_cache import BLOCK_BYTES
from fsdp_migrate.errors import CheckpointFormatError, CheckpointReadError
from tests.checkpoint.peak_memory import peak, private_bytes
from tests.checkpoint.s3_service import BUCKET, S3, Answer, Between, Request
from tests.checkpoint.samples import save_with_torch


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


pytestmark = pytest.mark.slow
MIB = 1 << 20
URL = f"s3://{BUCKET}/run"


def model_and_optimizer() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(2)))
    return model, torch.optim.AdamW(model.parameters(), lr=1.0)


def save_run(folder: Path, kind: str) -> tuple[Path, nn.Module]:
    """Save a model of 2 MiB after a step, with its optimizer; ``kind`` is "folder" or that of one file."""
    model, optimizer = model_and_optimizer()
    model(torch.ones(1, 512)).sum().backward()
    optimizer.step()
    names = [name for name, _ in model.named_parameters()]
    own = optimizer.state_dict()
    state = {name: own["state"][number] for number, name in enumerate(names)}
    groups = [{**own["param_groups"][0], "params": names}]
    whole = {"model": model.state_dict(), "optimizer": {"state": state, "param_groups": groups}}
    (folder / "run").mkdir()
    if kind == "two folders":
        for name, part in (("pytorch_model_fsdp_0", "model"), ("optimizer_0", "optimizer")):
            (folder / "run" / name).mkdir()
            save_with_torch({part: whole[part]}, folder / "run" / name)
    elif kind != "folder":
        torch.save(whole, folder / "run" / "state.pt")
    else:
        save_with_torch(whole, folder / "run")
    return folder / "run", model


def counted(between: Between) -> dict[str, int]:
    """Count the bytes that are answered, from here on."""
    found = {"bytes": 0, "gets": 0, "lists": 0}
    read: set[str] = set()
    asked: set[str] = set()

    def pass_on(request: Request, ask: Callable[[], Answer]) -> Answer:
        answer = ask()
        found["lists" if request.lists else "gets"] += 1
        if request.method == "GET" and not request.lists:
            found["bytes"] += len(answer.body)
            read.add(request.key)
            asked.discard(request.key)
        elif request.method == "HEAD":
            asked.add(request.key)
        found["not asked for again"] = len(read - asked)
        return answer

    between.fault = pass_on
    return found


@pytest.mark.s3
@pytest.mark.parametrize(
    ("kind", "at"),
    [
        ("folder", "run"),
        ("folder", "runs/step-4000"),  # could be the name of a rank's file
        ("file", "run/state.pt"),
        ("file alone in a folder", "run"),
        ("two folders", "run/checkpoint-5"),
    ],
)
def test_little_more_is_asked_of_a_store_than_is_needed(
    kind: str, at: str, s3: S3, between: Between, tmp_path: Path
) -> None:
    folder, saved = save_run(tmp_path, kind)
    s3.put(folder, at.removesuffix("/state.pt"))
    s3.client.put_object(Bucket=BUCKET, Key="runs/step-3000/.metadata", Body=b"another")
    url = f"s3://{BUCKET}/{at}"
    needed = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert needed > 6 * MIB
    counts = counted(between)
    model, optimizer = model_and_optimizer()
    report = load_checkpoint(url, model, optimizer)
    assert all(torch.equal(value, saved.state_dict()[name]) for name, value in model.state_dict().items())
    assert report.nbytes > 6 * MIB
    assert counts["bytes"] <= 1.1 * needed
    # Every request that lists, also those of one entry by which clients ask for a folder.
    assert counts["lists"] == (3 if kind == "two folders" else 1)
    assert counts["gets"] <= 40
    assert counts["not asked for again"] == 0
    # A rank's half of one tensor.
    counts.update(bytes=0, gets=0, lists=0)
    catalogue = Catalogue(url)
    opened = counts["bytes"]
    half = torch.empty(256, 512)
    read_slices(
        catalogue.folder, [Slice(catalogue.tensors["model.0.weight"].source, ((256, 0), (256, 512)), half)]
    )
    catalogue.close()
    assert torch.equal(half, saved.state_dict()["0.weight"][256:])
    # What frames the item is in a block of its own or not, as the torch that saved it aligned it. A file into
    # which nobody has looked yet is read ahead for what frames the small items in it.
    framing = (8 if kind == "two folders" else 1) * BLOCK_BYTES
    assert counts["bytes"] - opened <= half.nbytes + framing


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
def test_ranks_compare_the_versions_of_what_a_store_holds(s3: S3, tmp_path: Path) -> None:
    """Each looks again only at the files that it read: two saves of one run must not be mixed."""
    folder, _ = save_run(tmp_path, "folder")
    s3.put(folder, "run")
    first = Catalogue(URL)
    data = (folder / "__0_0.distcp").read_bytes()
    s3.client.put_object(Bucket=BUCKET, Key="run/__0_0.distcp", Body=data[:-1] + b"?")
    second = Catalogue(URL)
    assert first.seen != second.seen
    assert Catalogue(URL).seen == second.seen


def late(ask: Callable[[], Answer]) -> Answer:
    time.sleep(2)
    return ask()


FAULTS: dict[str, Callable[[Callable[[], Answer]], Answer]] = {
    "slow down": lambda ask: ask().replaced(503, "SlowDown"),
    "unavailable": lambda ask: ask().replaced(503, "ServiceUnavailable"),
    "internal error": lambda ask: ask().replaced(500, "InternalError"),
    "cut": lambda ask: replace(ask(), is_cut=True),
    "late": late,
}
"""What a service that has no time answers; ``late`` is later than the client of the test waits."""


@pytest.mark.s3
@pytest.mark.parametrize("fault", FAULTS)
def test_what_a_store_has_no_time_for_is_asked_again(
    fault: str, s3: S3, between: Between, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "4")
    monkeypatch.setitem(fsspec.config.conf, "s3", {"config_kwargs": {"read_timeout": 1}})
    folder, saved = save_run(tmp_path, "folder")
    s3.put(folder, "run")
    seen: set[tuple[str, str]] = set()

    def once(request: Request, ask: Callable[[], Answer]) -> Answer:
        if (request.method, request.key) in seen:
            return ask()
        seen.add((request.method, request.key))
        return FAULTS[fault](ask)

    between.fault = once
    model, optimizer = model_and_optimizer()
    load_checkpoint(URL, model, optimizer)
    assert all(torch.equal(value, saved.state_dict()[name]) for name, value in model.state_dict().items())
    # The list, and each file twice: it is read, and asked for at the end.
    assert len(seen) == 5


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
