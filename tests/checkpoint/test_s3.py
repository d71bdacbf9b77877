"""Sources and outputs on S3, against a server of moto's on this machine."""

from __future__ import annotations

import logging
import re
import socket
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
import torch

from fsdp_migrate.checkpoint_convert import (
    convert_checkpoint,
    inspect_checkpoint,
    verify_checkpoints,
)
from fsdp_migrate.cli import main
from fsdp_migrate.errors import CheckpointNotFoundError, CheckpointReadError, OutputError
from tests.checkpoint.samples import PLAIN, contents, save_with_torch


if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


pytestmark = pytest.mark.s3

MIB = 1 << 20
BUCKET = "checkpoints"
REQUEST = re.compile(rf"\"(PUT|POST|DELETE) /{BUCKET}/([^ ?]+)(?:\?(\S*))? HTTP/1.1\S* (\d+)")


class _S3:
    """A server with one bucket, and what is in it by S3's own client."""

    def __init__(self, url: str) -> None:
        import boto3

        self.url = url
        self.client = boto3.client("s3", region_name="us-east-1")
        self.client.create_bucket(Bucket=BUCKET)

    def objects(self) -> dict[str, bytes]:
        """Return every object, but not by the code under test."""
        found = self.client.list_objects_v2(Bucket=BUCKET).get("Contents", [])
        return {
            each["Key"]: self.client.get_object(Bucket=BUCKET, Key=each["Key"])["Body"].read()
            for each in found
        }

    def unfinished(self) -> list[str]:
        """Return the multipart uploads that were begun and neither finished nor given up: they cost money."""
        found = self.client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])
        return [each["Key"] for each in found]

    def put(self, folder: Path, under: str) -> None:
        """Upload a folder."""
        for name, data in contents(folder).items():
            self.client.put_object(Bucket=BUCKET, Key=f"{under}/{name}", Body=data)


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[_S3]:
    """Start a server; credentials and address reach s3fs as they reach it in use, by the environment."""
    import s3fs
    from moto.server import ThreadedMotoServer

    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    settings = {
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": str(tmp_path / "no-config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "no-credentials"),
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_MAX_ATTEMPTS": "1",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    url = "http://{}:{}".format(*server.get_host_and_port())
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    s3fs.S3FileSystem.clear_instance_cache()
    try:
        _post(f"{url}/moto-api/reset")
        yield _S3(url)
    finally:
        s3fs.S3FileSystem.clear_instance_cache()
        server.stop()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Save a checkpoint whose one data file takes several parts."""
    return save_with_torch({"model": {"w": torch.arange(5 * MIB).float()}}, tmp_path / "source")


def _post(url: str, data: str = "") -> None:
    with urllib.request.urlopen(urllib.request.Request(url, data=data.encode(), method="POST")):
        pass


def _said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, str]]:
    """Return the requests that changed something: method, key and query, in their order."""
    found = [REQUEST.search(record.getMessage()) for record in caplog.records]
    return [(each[1], each[2], each[3] or "") for each in found if each and each[4].startswith("2")]


def test_a_checkpoint_goes_to_s3_and_comes_back_bit_for_bit(s3: _S3, tmp_path: Path) -> None:
    convert_checkpoint(PLAIN, f"s3://{BUCKET}/there", world_size=3, checksums=True)
    assert verify_checkpoints(f"s3://{BUCKET}/there", PLAIN).is_same
    convert_checkpoint(f"s3://{BUCKET}/there", tmp_path / "back", world_size=2)
    assert verify_checkpoints(tmp_path / "back", PLAIN).is_same
    assert s3.unfinished() == []


def test_a_large_file_goes_in_parts_and_the_metadata_goes_last(
    s3: _S3, source: Path, caplog: pytest.LogCaptureFixture
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
    s3: _S3, tmp_path: Path, caplog: pytest.LogCaptureFixture
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


def test_an_interrupted_conversion_leaves_nothing(s3: _S3, source: Path) -> None:
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
    s3: _S3, source: Path, monkeypatch: pytest.MonkeyPatch, request_: str
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
    s3: _S3, capsys: pytest.CaptureFixture[str]
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
    s3: _S3, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wrong: str
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
    s3: _S3, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
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
