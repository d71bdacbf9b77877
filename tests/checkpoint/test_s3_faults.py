"""Services that fail: requests that are refused, cut, flipped, late or denied, and lists that lag behind."""

from __future__ import annotations

import collections
import itertools
import re
import time
import zlib
from typing import TYPE_CHECKING, Any

import pytest
import torch

from fsdp_migrate.checkpoint_convert import convert_checkpoint, inspect_checkpoint, verify_checkpoints
from fsdp_migrate.checkpoint_convert.formats.dcp_metadata_writer import write_metadata
from fsdp_migrate.checkpoint_convert.formats.zip_writer import tensor_archive
from fsdp_migrate.checkpoint_convert.manifest.manifest import Chunk, Stored, TensorEntry
from fsdp_migrate.errors import (
    CheckpointError,
    CheckpointReadError,
    OutputError,
    OutputExistsError,
)
from tests.checkpoint.s3_service import BUCKET, PATIENT, S3, Answer, Between, Request
from tests.checkpoint.samples import assert_nothing_left, save_with_torch


if TYPE_CHECKING:
    from collections.abc import Callable

    Fault = Callable[[Request, Callable[[], Answer]], Answer]
    from pathlib import Path


pytestmark = pytest.mark.s3

SRC, OUT = f"s3://{BUCKET}/src", f"s3://{BUCKET}/out"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    state = {"model": {"a": torch.arange(12.0).reshape(6, 2), "b": torch.ones(3)}}
    return save_with_torch(state, tmp_path / "small")


def is_data(request: Request) -> bool:
    return request.method == "GET" and request.key.endswith(".distcp")


def once_each(wanted: Callable[[Request], bool], fail: Fault) -> Any:
    """Fail each request of a kind the first time that it comes."""
    seen: set[Request] = set()

    def fault(request: Request, ask: Callable[[], Answer]) -> Answer:
        if wanted(request) and request not in seen:
            seen.add(request)
            return fail(request, ask)
        return ask()

    return fault


def cut(request: Request, ask: Callable[[], Answer]) -> Answer:
    del request
    answer = ask()
    answer.is_cut = True
    return answer


def refuse(status: int, code: str) -> Callable[[Request, Callable[[], Answer]], Answer]:
    return lambda request, ask: Answer(503, [], b"").replaced(status, code)


def without(answer: Answer, pattern: str) -> Answer:
    """Leave objects out of a list, as one that lags behind does."""
    text = re.sub(rf"<Contents><Key>{pattern}</Key>.*?</Contents>", "", answer.body.decode(), flags=re.DOTALL)
    left = text.count("<Contents>")
    text = re.sub(r"<KeyCount>\d+</KeyCount>", f"<KeyCount>{left}</KeyCount>", text)
    return Answer(answer.status, answer.headers, text.encode())


def many_files(files: int) -> dict[str, bytes]:
    """Return a checkpoint of so many data files, of a few bytes each."""
    archive, data = tensor_archive("float32", (1, 8)), bytes(range(32))
    chunks = tuple(
        Chunk((rank, 0), (1, 8), Stored(f"__{rank}_0.distcp", 0, archive.length)) for rank in range(files)
    )
    entry = TensorEntry("model.w", ("model", "w"), "float32", (files, 8), chunks)
    item = archive.head + data + archive.tail(zlib.crc32(data))
    found = {chunk.stored.file: item for chunk in chunks}
    return {**found, ".metadata": write_metadata([entry], checkpoint_id="x")}


def test_a_checkpoint_of_1100_files_takes_few_requests(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import s3fs
    from moto.backends import get_backend

    del s3
    files = 1100
    backend = get_backend("s3")["123456789012"]["aws"]
    for name, data in many_files(files).items():
        backend.put_object(BUCKET, f"src/{name}", data)
    call = s3fs.S3FileSystem._call_s3
    counts: collections.Counter[str] = collections.Counter()

    async def counted(self: Any, method: str, *args: Any, **more: Any) -> Any:
        counts[method] += 1
        return await call(self, method, *args, **more)

    async def listed(self: Any, method: str, **more: Any) -> Any:
        async for page in pages(self, method, **more):
            counts["pages"] += 1
            yield page

    pages = s3fs.S3FileSystem._list_pages
    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", counted)
    monkeypatch.setattr(s3fs.S3FileSystem, "_list_pages", listed)
    assert len(inspect_checkpoint(SRC).files) == files
    # One list of 1,101 objects; `.metadata` and some of the files are opened.
    assert counts["pages"] == 2
    assert sum(counts.values()) <= 2 + 30
    counts.clear()
    convert_checkpoint(SRC, tmp_path / "out")
    # What there is, and twice whether it is the same still; each file is read in one go.
    assert counts["pages"] == 3 * 2
    assert files < counts["get_object"] <= files + 30
    assert sum(counts.values()) <= files + 60


@pytest.mark.parametrize(("status", "code"), [(503, "SlowDown"), (500, "InternalError")])
def test_what_the_service_has_no_time_for_is_asked_again(
    status: int,
    code: str,
    s3: S3,
    between: Between,
    small: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "4")
    s3.put(small, "src")
    between.fault = once_each(lambda request: True, refuse(status, code))
    convert_checkpoint(SRC, OUT, world_size=2)
    between.fault = None
    assert verify_checkpoints(OUT, small).is_same
    assert between.count(lambda request: request.changes) >= 8
    assert s3.unfinished() == []


def test_an_answer_that_does_not_come_is_asked_for_again(
    s3: S3, between: Between, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fsspec

    monkeypatch.setitem(fsspec.config.conf, "s3", {"config_kwargs": {**PATIENT, "read_timeout": 1}})
    s3.put(small, "src")

    def wait(request: Request, ask: Callable[[], Answer]) -> Answer:
        del request
        time.sleep(3)
        return ask()

    between.fault = once_each(is_data, wait)
    convert_checkpoint(SRC, tmp_path / "out", world_size=2)
    assert between.count(is_data) >= 2
    assert verify_checkpoints(tmp_path / "out", small).is_same


def test_an_answer_that_was_cut_is_asked_for_again(
    s3: S3, between: Between, small: Path, tmp_path: Path
) -> None:
    s3.put(small, "src")
    between.fault = once_each(is_data, cut)
    convert_checkpoint(SRC, tmp_path / "out", world_size=2)
    assert between.count(is_data) >= 2
    assert verify_checkpoints(tmp_path / "out", small).is_same


def flipped(request: Request, ask: Callable[[], Answer]) -> Answer:
    """Flip a bit in the tensor ``b``, which is in one place."""
    answer = ask()
    at = answer.body.find(torch.ones(3).numpy().tobytes()) if is_data(request) else -1
    if at >= 0:
        answer.body = answer.body[:at] + bytes([answer.body[at] ^ 4]) + answer.body[at + 1 :]
    return answer


def longer(request: Request, ask: Callable[[], Answer]) -> Answer:
    answer = ask()
    if is_data(request):
        answer.body += bytes(1 << 20)
    return answer


def shorter(request: Request, ask: Callable[[], Answer]) -> Answer:
    answer = ask()
    if is_data(request):
        answer.body = answer.body[: len(answer.body) // 2]
    return answer


@pytest.mark.parametrize("fault", [flipped, longer, shorter])
def test_answers_with_other_bytes_are_errors(
    fault: Any, s3: S3, between: Between, small: Path, tmp_path: Path
) -> None:
    s3.put(small, "src")
    between.fault = fault
    with pytest.raises(CheckpointError, match=r"src/__0_0\.distcp"):
        convert_checkpoint(SRC, tmp_path / "out", world_size=2)
    with pytest.raises(CheckpointError):
        convert_checkpoint(SRC, OUT)
    assert_nothing_left(tmp_path, "small")
    assert not any(key.startswith("out/") for key in s3.objects())


def stops_after(moment: int) -> Callable[[Request, Callable[[], Answer]], Answer]:
    """Take some requests that change something, and no more."""
    seen = itertools.count()

    def fault(request: Request, ask: Callable[[], Answer]) -> Answer:
        is_refused = request.changes and next(seen) >= moment
        return refuse(503, "ServiceUnavailable")(request, ask) if is_refused else ask()

    return fault


def test_a_service_that_stops_taking_writes_leaves_nothing_that_looks_whole(
    s3: S3, between: Between, small: Path
) -> None:
    convert_checkpoint(small, OUT, world_size=3)
    wanted, total = s3.objects(), between.count(lambda request: request.changes)
    refused = 0
    for moment in range(0, total, 2):
        s3.clear()
        between.fault = stops_after(moment)
        try:
            convert_checkpoint(small, OUT, world_size=3)
        except OutputError:
            refused += 1
            assert "out/.metadata" not in s3.objects()
        else:
            # Only what is left of the work could not be removed.
            assert s3.objects().items() >= wanted.items()
        between.fault = None
        convert_checkpoint(small, OUT, world_size=3, overwrite=True)
        assert s3.objects() == wanted
    assert refused >= 3


def test_a_list_that_is_denied_is_not_an_empty_one(s3: S3, between: Between, small: Path) -> None:
    for under in ("src", "out"):
        s3.put(small, under)
    before = s3.objects()
    between.fault = lambda request, ask: (
        ask().replaced(403, "AccessDenied") if request.lists and "max-keys=1&" not in request.query else ask()
    )
    with pytest.raises(CheckpointReadError, match="access is denied"):
        inspect_checkpoint(SRC)
    with pytest.raises(OutputError, match="access is denied"):
        convert_checkpoint(small, OUT, world_size=2, overwrite=True)
    assert s3.objects() == before


def test_a_folder_within_that_may_not_be_listed_is_not_an_empty_one(
    s3: S3, between: Between, tmp_path: Path
) -> None:
    """Where several folders are looked into, fsspec's own walk goes on without one that it may not list."""
    (tmp_path / "model").mkdir()
    for rank in range(2):
        torch.save({"w": torch.ones(2)}, tmp_path / "model" / f"rank{rank}.pt")
    s3.put(tmp_path, "src")
    between.fault = lambda request, ask: (
        ask().replaced(403, "AccessDenied") if request.lists and "model" in request.query else ask()
    )
    with pytest.raises(CheckpointReadError, match="access is denied"):
        inspect_checkpoint(SRC)


@pytest.mark.parametrize("lost", [r".*?", r"\S*__0_0\.distcp", r"\S*\.metadata"])
def test_a_list_that_lags_behind_is_not_believed(lost: str, s3: S3, between: Between, small: Path) -> None:
    for under in ("src", "out"):
        s3.put(small, under)
    before = s3.objects()
    between.fault = lambda request, ask: without(ask(), lost) if request.lists else ask()
    with pytest.raises(CheckpointError):
        inspect_checkpoint(SRC)
    with pytest.raises(OutputExistsError):
        convert_checkpoint(small, OUT, world_size=2)
    assert s3.objects() == before
    if "distcp" not in lost:
        with pytest.raises(OutputError, match="lag behind"):
            convert_checkpoint(small, OUT, world_size=2, overwrite=True)
        left = {key: data for key, data in s3.objects().items() if "conversion" not in key}
        assert left == before


def test_an_output_that_may_not_be_removed_stays_whole(s3: S3, between: Between, small: Path) -> None:
    s3.put(small, "out")
    before = s3.objects()
    between.fault = lambda request, ask: (
        Answer(403, [], b"")
        if request.changes and (request.method == "DELETE" or request.query.startswith("delete"))
        else ask()
    )
    with pytest.raises(OutputError):
        convert_checkpoint(small, OUT, world_size=3, overwrite=True)
    found = s3.objects()
    assert {key: found[key] for key in before} == before
