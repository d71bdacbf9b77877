"""What is asked of a store for the slices of a tensor."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import fsspec
import pytest
import torch

from fsdp_migrate import load_checkpoint
from fsdp_migrate.checkpoint_convert.loading.catalogue import Catalogue
from fsdp_migrate.checkpoint_convert.loading.slices import Slice, read_slices
from fsdp_migrate.checkpoint_convert.storage.block_cache import BLOCK_BYTES
from tests.checkpoint.loading.stores import MIB, URL, model_and_optimizer, save_run
from tests.checkpoint.s3_service import BUCKET, S3, Answer, Between, Request


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


pytestmark = pytest.mark.slow


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
