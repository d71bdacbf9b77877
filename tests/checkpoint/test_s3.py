"""Sources and outputs on S3, against a server of moto's on this machine."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import re
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch

from fsdp_migrate.checkpoint_convert import (
    OutputOptions,
    convert_checkpoint,
    inspect_checkpoint,
    verify_checkpoints,
)
from fsdp_migrate.checkpoint_convert.outputs import object_store_journal
from fsdp_migrate.checkpoint_convert.outputs.object_store import FsspecOutput
from fsdp_migrate.cli import main
from fsdp_migrate.errors import (
    CheckpointNotFoundError,
    CheckpointReadError,
    OutputError,
    OutputExistsError,
)
from tests.checkpoint.s3_service import BUCKET, S3
from tests.checkpoint.samples import PLAIN, contents, save_run, save_with_torch
from tests.ranks import ROOT


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.s3

MIB = 1 << 20
REQUEST = re.compile(rf"\"(PUT|POST|DELETE) /{BUCKET}/([^ ?]+)(?:\?(\S*))? HTTP/1.1\S* (\d+)")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Save a checkpoint whose one data file takes several parts."""
    return save_with_torch({"model": {"w": torch.arange(5 * MIB).float()}}, tmp_path / "source")


def _said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, str]]:
    """Return the requests that changed something: method, key and query, in their order."""
    found = [REQUEST.search(record.getMessage()) for record in caplog.records]
    return [(each[1], each[2], each[3] or "") for each in found if each and each[4].startswith("2")]


def test_a_checkpoint_goes_to_s3_and_comes_back_bit_for_bit(s3: S3, tmp_path: Path) -> None:
    convert_checkpoint(PLAIN, f"s3://{BUCKET}/there", world_size=3, checksums=True)
    assert verify_checkpoints(f"s3://{BUCKET}/there", PLAIN).is_same
    convert_checkpoint(f"s3://{BUCKET}/there", tmp_path / "back", world_size=2)
    assert verify_checkpoints(tmp_path / "back", PLAIN).is_same
    assert s3.unfinished() == []


def test_the_full_form_goes_to_s3_and_comes_back_bit_for_bit(s3: S3, tmp_path: Path) -> None:
    """Accelerate's files, of which one is the whole model and one the whole optimizer."""
    there, form = f"s3://{BUCKET}/full", OutputOptions("AdamW", state_dict_type="full")
    source = save_run(tmp_path / "source")
    convert_checkpoint(source, there, to="accelerate", output_options=form)
    convert_checkpoint(source, tmp_path / "full", to="accelerate", output_options=form)
    local = contents(tmp_path / "full")
    assert local.keys() == {"pytorch_model_fsdp.bin", "optimizer.bin"}
    assert s3.objects() == {f"full/{name}": data for name, data in local.items()}
    convert_checkpoint(there, f"s3://{BUCKET}/back", to="torch")
    assert verify_checkpoints(f"s3://{BUCKET}/back", source).is_same


def test_a_large_file_goes_in_parts_and_the_metadata_goes_last(
    s3: S3, source: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="werkzeug"):
        convert_checkpoint(source, f"s3://{BUCKET}/out")
    said = _said(caplog)
    uploaded = [query for method, _, query in said if method == "PUT" and "partNumber=" in query]
    assert len(uploaded) >= 3
    made = [
        key
        for method, key, query in said
        if (method == "PUT" and not query) or (method == "POST" and "uploadId=" in query)
    ]
    assert "out/__0_0.linked.distcp" in made
    assert made[-1] == "out/.metadata"
    assert made.count("out/.metadata") == 1
    assert verify_checkpoints(f"s3://{BUCKET}/out", source).is_same


def test_an_output_that_is_replaced_has_no_metadata_until_the_new_one_is_whole(
    s3: S3, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    s3.put(PLAIN, "out")
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="werkzeug"):
        convert_checkpoint(PLAIN, f"s3://{BUCKET}/out", world_size=3, overwrite=True)
    made = [key for method, key, _ in _said(caplog) if method == "PUT" and key.startswith("out/")]
    assert made[-1] == "out/.metadata"
    assert made.count("out/.metadata") == 1
    convert_checkpoint(PLAIN, tmp_path / "out", world_size=3)
    local = {f"out/{name}": data for name, data in contents(tmp_path / "out").items()}
    replaced = s3.objects()
    assert replaced.keys() == local.keys()
    del replaced["out/.metadata"], local["out/.metadata"]  # it says where it was written
    assert replaced == local


def test_an_interrupted_conversion_leaves_nothing(s3: S3, source: Path) -> None:
    begun: list[str] = []

    def interrupt(event: object) -> None:
        del event
        begun.extend(s3.unfinished())
        if begun:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert_checkpoint(source, f"s3://{BUCKET}/out", buffer_bytes=MIB, progress=interrupt)
    assert begun
    assert s3.objects() == {}
    assert s3.unfinished() == []


@pytest.mark.parametrize("request_", ["upload_part", "complete_multipart_upload"])
def test_an_upload_that_the_service_refuses_leaves_nothing(
    s3: S3, source: Path, monkeypatch: pytest.MonkeyPatch, request_: str
) -> None:
    from moto.s3.exceptions import InvalidPart
    from moto.s3.models import S3Backend

    def refuse(*_: Any, **__: Any) -> None:
        raise InvalidPart

    monkeypatch.setattr(S3Backend, request_, refuse)
    with pytest.raises(OutputError, match=f"s3://{BUCKET}/out"):
        convert_checkpoint(source, f"s3://{BUCKET}/out")
    assert s3.objects() == {}
    assert s3.unfinished() == []


def test_a_bucket_that_is_not_there_is_an_error_and_is_not_made(
    s3: S3, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CheckpointNotFoundError, match=r"There is nothing at 's3://nowhere/x'"):
        inspect_checkpoint("s3://nowhere/x")
    assert main(["convert", str(PLAIN), "s3://nowhere/x", "--world-size", "3"]) == 1
    said = capsys.readouterr().err
    assert "bucket" in said
    assert "Traceback" not in said
    assert [each["Name"] for each in s3.client.list_buckets()["Buckets"]] == [BUCKET]


@pytest.mark.parametrize("wrong", ["denied", "missing"])
def test_wrong_credentials_are_an_error_that_says_so(
    s3: S3, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wrong: str
) -> None:
    s3.put(PLAIN, "ckpt")
    if wrong == "denied":
        monkeypatch.setattr("moto.settings.INITIAL_NO_AUTH_ACTION_COUNT", 0)
    else:
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    word = "access is denied" if wrong == "denied" else "no credentials"
    with pytest.raises(CheckpointReadError, match=word):
        inspect_checkpoint(f"s3://{BUCKET}/ckpt")
    assert main(["convert", str(PLAIN), f"s3://{BUCKET}/out", "--world-size", "3"]) == 1
    said = capsys.readouterr().err
    assert word in " ".join(said.split())
    assert "Traceback" not in said


def test_a_service_that_cannot_be_reached_is_an_error(
    s3: S3, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    with pytest.raises(CheckpointReadError, match=f"127.0.0.1:{port}"):
        inspect_checkpoint(f"s3://{BUCKET}/ckpt")
    assert main(["convert", str(PLAIN), f"s3://{BUCKET}/out", "--world-size", "3"]) == 1
    said = capsys.readouterr().err
    assert str(port) in said
    assert "Traceback" not in said


KILLED = """
import json, os, signal, sys
from fsdp_migrate.checkpoint_convert import convert_checkpoint
from fsdp_migrate.checkpoint_convert.execution import file_writer
from fsdp_migrate.checkpoint_convert.outputs import object_store_journal
file_writer.MARK_BYTES, object_store_journal.SAVE_SECONDS = 8 << 20, 0
def die(event):
    if event.done_bytes >= int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
convert_checkpoint(*sys.argv[1:3], buffer_bytes=1 << 20, progress=die, **json.loads(sys.argv[4]))
"""


def kill(source: Path, out: str, nbytes: int, **options: Any) -> None:
    """Convert in another process, which is killed once it has done so many bytes."""
    command = [sys.executable, "-c", KILLED, str(source), out, str(nbytes), json.dumps(options)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr


def test_a_killed_conversion_goes_on_within_a_large_file(s3: S3, tmp_path: Path) -> None:
    state = {"model": {str(n): torch.full((2048, 1024), float(n)) for n in range(8)}}
    source, out = save_with_torch(state, tmp_path / "source"), f"s3://{BUCKET}/out"
    kill(source, out, 22 * MIB, dtype="fp16")
    assert "out/.metadata" not in s3.objects()
    (upload,) = s3.unfinished()
    with pytest.raises(OutputError, match=r"--resume.*--overwrite"):
        convert_checkpoint(source, out, dtype="fp16")
    with pytest.raises(OutputError, match="cannot be continued"):
        convert_checkpoint(source, out, dtype="bf16", resume=True)
    assert s3.unfinished() == [upload]
    report = convert_checkpoint(source, out, dtype="fp16", resume=True)
    assert 8 * MIB <= report.bytes_resumed < report.bytes_written
    assert s3.unfinished() == []
    convert_checkpoint(source, tmp_path / "out", dtype="fp16")
    local, found = contents(tmp_path / "out"), s3.objects()
    assert found.keys() == {f"out/{name}" for name in local}
    assert found["out/__0_0.distcp"] == local["__0_0.distcp"]
    again = convert_checkpoint(source, out, dtype="fp16", resume=True)
    assert again.bytes_resumed == again.bytes_written
    assert s3.objects() == found
    with pytest.raises(OutputExistsError):
        convert_checkpoint(source, out, dtype="bf16", resume=True)


def test_what_a_killed_conversion_left_can_be_thrown_away(s3: S3, source: Path) -> None:
    out = f"s3://{BUCKET}/out"
    kill(source, out, 18 * MIB)
    assert s3.unfinished()
    convert_checkpoint(source, out, overwrite=True, dtype="bf16")
    assert s3.unfinished() == []
    assert sorted(s3.objects()) == ["out/.metadata", "out/__0_0.distcp"]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return save_with_torch(
        {"model": {"a": torch.arange(12.0).reshape(6, 2), "b": torch.ones(3)}}, tmp_path / "s"
    )


@pytest.mark.parametrize("replaces", [False, True], ids=["new", "replaced"])
def test_killed_at_every_request(
    replaces: bool, s3: S3, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is done any more from some request on, as where a process is killed; another one goes on."""
    import s3fs

    out = f"s3://{BUCKET}/out"
    options: dict[str, Any] = {"world_size": 2, "overwrite": replaces}  # more ranks: more of equal moments
    monkeypatch.setattr(object_store_journal, "SAVE_SECONDS", 0)
    call, count, last = s3fs.S3FileSystem._call_s3, itertools.count(), 1 << 60
    refused = set()

    async def counted(self: Any, method: str, *args: Any, **more: Any) -> Any:
        if not method.startswith(("list", "get", "head")):
            moment = next(count)
            if moment == last:
                refused.add(method)
            if moment >= last:
                raise PermissionError("the process is dead")
        return await call(self, method, *args, **more)

    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", counted)
    old = {f"out/{name}": data for name, data in contents(small).items()} if replaces else {}
    convert_checkpoint(small, out, **options)
    wanted = s3.objects()
    moments, last = 0, 0
    while True:
        s3.clear()
        if replaces:
            s3.put(small, "out")
        count, last = itertools.count(), moments
        with contextlib.suppress(
            OutputError
        ):  # none, where only what is left of the work could not be removed
            convert_checkpoint(small, out, **options)
        if next(count) <= last:
            break
        FsspecOutput._active.clear()
        found = {key: data for key, data in s3.objects().items() if key.startswith("out/")}
        found.pop("out/.conversion-in-progress", None)
        assert "out/.metadata" not in found or found.items() >= wanted.items() or found == old
        last = 1 << 60
        with contextlib.suppress(OutputExistsError):  # it was whole
            convert_checkpoint(small, out, resume=True, **options)
        assert s3.objects() == wanted, moments
        assert s3.unfinished() == []
        moments += 1
    assert refused == {
        "put_object",
        "delete_object",
        "delete_objects",
        *(("copy_object",) if replaces else ()),
    }


def test_who_is_taken_over_does_not_finish(s3: S3, small: Path) -> None:
    out = f"s3://{BUCKET}/out"
    seen: list[bool] = []

    def take_over(event: object) -> None:
        del event
        if seen:
            return
        seen.append(True)
        wishes: list[dict[str, Any]] = [{}, {"resume": True}, {"overwrite": True}]
        for options in wishes:
            with pytest.raises(OutputError, match="at the moment"):
                convert_checkpoint(small, out, world_size=3, **options)
        FsspecOutput._active.clear()
        convert_checkpoint(small, out, world_size=3, resume=True)

    with pytest.raises(OutputError, match="has taken"):
        convert_checkpoint(small, out, world_size=3, progress=take_over)
    assert verify_checkpoints(small, out).is_same
