"""An S3 service of moto's on this machine, and one between it and its clients that misbehaves as asked."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import urllib.request
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from tests.checkpoint.samples import contents


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pytest


BUCKET = "checkpoints"

PATIENT = {"connect_timeout": 120, "read_timeout": 120}
"""Seconds that s3fs waits. Its own 5 to connect are over where a process stands still on a busy machine."""


class S3:
    """A server with one bucket, and what is in it by S3's own client."""

    def __init__(self, url: str) -> None:
        import boto3

        self.url = url
        self.client = boto3.client("s3", region_name="us-east-1", endpoint_url=url)
        self.client.create_bucket(Bucket=BUCKET)

    def objects(self) -> dict[str, bytes]:
        """Return every object, but not by the code under test."""
        found: dict[str, bytes] = {}
        for page in self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET):
            for each in page.get("Contents", []):
                body = self.client.get_object(Bucket=BUCKET, Key=each["Key"])["Body"]
                found[each["Key"]] = body.read()
        return found

    def unfinished(self) -> list[str]:
        """Return the multipart uploads that were begun and neither finished nor given up: they cost money."""
        found = self.client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])
        return [each["Key"] for each in found]

    def put(self, folder: Path, under: str) -> None:
        """Upload a folder."""
        for name, data in contents(folder).items():
            self.client.put_object(Bucket=BUCKET, Key=f"{under}/{name}", Body=data)

    def clear(self) -> None:
        """Remove every object."""
        for page in self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET):
            if keys := [{"Key": each["Key"]} for each in page.get("Contents", [])]:
                self.client.delete_objects(Bucket=BUCKET, Delete={"Objects": keys})


@contextlib.contextmanager
def serve_s3() -> Iterator[str]:
    """Start a server; return its address."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        yield "http://{}:{}".format(*server.get_host_and_port())
    finally:
        server.stop()


@contextlib.contextmanager
def use_s3(url: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[S3]:
    """Empty a server; credentials and address reach s3fs as they reach it in use, by the environment."""
    import fsspec
    import s3fs

    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    settings = {
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": str(folder / "no-config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(folder / "no-credentials"),
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_MAX_ATTEMPTS": "1",
        "AWS_ENDPOINT_URL": url,
        "FSSPEC_S3": json.dumps({"config_kwargs": PATIENT}),  # for the processes that a test starts
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(fsspec.config.conf, "s3", {"config_kwargs": PATIENT})
    s3fs.S3FileSystem.clear_instance_cache()
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{url}/moto-api/reset", data=b"", method="POST")):
            pass
        yield S3(url)
    finally:
        s3fs.S3FileSystem.clear_instance_cache()


@dataclass(frozen=True)
class Request:
    """What a client asked for; ``key`` is the object, or nothing for the bucket itself."""

    method: str
    key: str
    query: str
    nbytes: int

    @property
    def changes(self) -> bool:
        """Tell whether it changes something."""
        return self.method not in ("GET", "HEAD")

    @property
    def lists(self) -> bool:
        """Tell whether it lists objects."""
        return self.method == "GET" and "list-type=2" in self.query


@dataclass
class Answer:
    """What the service answers."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    is_cut: bool = False

    def replaced(self, status: int, code: str) -> Answer:
        """Return an error of S3's instead."""
        text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}</Message></Error>"
        return Answer(status, [("Content-Type", "application/xml")], text.encode())


@dataclass
class Between:
    """Passes requests on, and counts them; ``fault`` may answer something else."""

    upstream: str
    requests: list[Request] = field(default_factory=list)
    fault: Callable[[Request, Callable[[], Answer]], Answer] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, request: Request, ask: Callable[[], Answer]) -> Answer:
        """Answer a request."""
        with self.lock:
            self.requests.append(request)
        return ask() if self.fault is None else self.fault(request, ask)

    def count(self, wanted: Callable[[Request], bool]) -> int:
        """Return how many requests were of a kind."""
        return sum(map(wanted, self.requests))


@contextlib.contextmanager
def stand_between(service: S3, monkeypatch: pytest.MonkeyPatch) -> Iterator[Between]:
    """Put a server between s3fs and the service."""
    import s3fs

    between = Between(service.url)

    class Handler(_Handler):
        owner = between

    class Server(ThreadingHTTPServer):
        # Python's own is 5; one more connection than wait then is not answered at all.
        request_queue_size = 128
        daemon_threads = True

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_address[1]}")
    s3fs.S3FileSystem.clear_instance_cache()
    try:
        yield between
    finally:
        s3fs.S3FileSystem.clear_instance_cache()
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    owner: Between
    protocol_version = "HTTP/1.1"

    def handle_one_request(self) -> None:
        with contextlib.suppress(ConnectionError):
            super().handle_one_request()

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        parts = urlsplit(self.path)
        key = unquote(parts.path).removeprefix(f"/{BUCKET}").removeprefix("/")
        request = Request(self.command, key, parts.query, len(body))
        answer = self.owner.answer(request, lambda: self._ask(body))
        self.send_response(answer.status)
        for name, value in answer.headers:
            self.send_header(name, value)
        nbytes = len(answer.body)
        is_head = self.command == "HEAD"
        if not is_head:
            self.send_header("Content-Length", str(nbytes))
        self.end_headers()
        if answer.is_cut:
            self.wfile.write(answer.body[: nbytes // 2])
            self.wfile.flush()
            self.close_connection = True
            self.connection.close()
        elif not is_head:
            self.wfile.write(answer.body)

    def _ask(self, body: bytes) -> Answer:
        at = urlsplit(self.owner.upstream)
        connection = http.client.HTTPConnection(
            at.hostname or "", at.port or 80, timeout=PATIENT["read_timeout"]
        )
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in ("connection", "expect"):
                    connection.putheader(name, value)
            connection.endheaders(body)
            got = connection.getresponse()
            data = got.read()
            skip = {"content-length", "connection", "transfer-encoding", "date", "server"}
            if self.command == "HEAD":
                skip.discard("content-length")
            headers = [(n, v) for n, v in got.getheaders() if n.lower() not in skip]
            return Answer(got.status, headers, data)
        finally:
            connection.close()

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _answer  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        del format, args
