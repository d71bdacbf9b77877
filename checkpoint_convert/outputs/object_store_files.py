"""Files behind URLs while they are written: whole ones of any service, and S3's in parts, several at once."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from fsdp_migrate.checkpoint_convert.storage.errors import writing_to


if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self


# S3 takes 10,000 parts of at least 5 MiB.
PART_BYTES: Final = 8 << 20
_MAX_PARTS: Final = 9000
# How many parts are on their way at once, over all files: this is what they take of memory, too.
_IN_FLIGHT: Final = 8


def part_bytes(size: int) -> int:
    """Return how large the parts of a file of a size are at least.

    Example:
        >>> part_bytes(1 << 30) >> 20, part_bytes(1 << 40) >> 20
        (8, 116)
    """
    return max(PART_BYTES, -(-size // _MAX_PARTS))


class RemoteFile:
    """A file of any service that appears when it is closed, and does not where there was an error."""

    def __init__(self, file: Any, url: str) -> None:
        self._file = file
        self._url = url

    def write(self, data: bytes | memoryview, /) -> object:
        """Append bytes."""
        with writing_to(self._url):
            return self._file.write(data)

    def sync(self) -> bool:
        """Say that a part of a file cannot be kept here."""
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object, /) -> None:
        if kind is not None:
            self._give_up()
            return
        try:
            with writing_to(self._url):
                self._file.close()
        except BaseException:
            self._give_up()
            raise

    def _give_up(self) -> None:
        """Leave no part that was uploaded: closing would upload the rest, and make a file of it."""
        with contextlib.suppress(Exception):
            self._file.discard()
        with contextlib.suppress(AttributeError):
            # fsspec's files are closed once nobody refers to them, and that would make a file of it.
            self._file.closed = True


class Uploads:
    """Multipart uploads to one S3 bucket, through the client that s3fs has. Safe to use from several threads.

    Args:
        fs: The file system of s3fs.
    """

    def __init__(self, fs: Any) -> None:
        self._fs = fs
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(_IN_FLIGHT)

    def put_whole(self, path: str, data: bytes) -> None:
        """Make a file in one go."""
        self._fs.pipe_file(path, data)

    def begin(self, path: str) -> str:
        """Begin an upload, and return what S3 calls it."""
        return str(self._call("create_multipart_upload", path)["UploadId"])

    def put(self, path: str, upload: str, number: int, data: bytes) -> Future[str]:
        """Send a part; its tag comes when S3 has it. Waits while many are on their way."""
        with self._lock:
            self._pool = self._pool or ThreadPoolExecutor(_IN_FLIGHT)
        self._slots.acquire()
        try:
            sent = self._pool.submit(self._put, path, upload, number, data)
        except BaseException:
            self._slots.release()
            raise
        # Released when it is sent, not when it is waited for: the writer goes on as long as there is room.
        sent.add_done_callback(lambda _: self._slots.release())
        return sent

    def parts(self, path: str, upload: str) -> dict[int, tuple[int, str]]:
        """Return the size and the tag of each part that S3 has of an upload; nothing where it is gone."""
        found: dict[int, tuple[int, str]] = {}
        after = 0
        while True:
            try:
                said = self._call("list_parts", path, UploadId=upload, PartNumberMarker=after)
            except FileNotFoundError:  # it was finished, or given up
                return {}
            for part in said.get("Parts", ()):
                found[int(part["PartNumber"])] = int(part["Size"]), str(part["ETag"])
            if not said.get("IsTruncated"):
                return found
            after = int(said["NextPartNumberMarker"])

    def finish(self, path: str, upload: str, tags: Mapping[int, str]) -> None:
        """Make a file of the parts."""
        parts = [{"PartNumber": number, "ETag": tag} for number, tag in sorted(tags.items())]
        self._call("complete_multipart_upload", path, UploadId=upload, MultipartUpload={"Parts": parts})

    def give_up(self, path: str, upload: str) -> None:
        """Remove the parts of an upload: they would cost money for ever."""
        with contextlib.suppress(Exception):
            self._call("abort_multipart_upload", path, UploadId=upload)

    def unfinished(self, folder: str) -> list[tuple[str, str]]:
        """Return path and upload of everything that was begun below a folder and not finished."""
        bucket, prefix, _ = self._fs.split_path(folder)
        found: list[tuple[str, str]] = []
        more: dict[str, Any] = {}
        while True:
            said = self._fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=f"{prefix}/", **more)
            found += [(f"{bucket}/{u['Key']}", u["UploadId"]) for u in said.get("Uploads", ())]
            if not said.get("IsTruncated"):
                return found
            more = {"KeyMarker": said["NextKeyMarker"], "UploadIdMarker": said["NextUploadIdMarker"]}

    def close(self) -> None:
        """End the threads that send."""
        with self._lock:
            if self._pool is not None:
                self._pool.shutdown()
            self._pool = None

    def _put(self, path: str, upload: str, number: int, data: bytes) -> str:
        return str(self._call("upload_part", path, UploadId=upload, PartNumber=number, Body=data)["ETag"])

    def _call(self, what: str, path: str, **more: Any) -> Any:
        bucket, key, _ = self._fs.split_path(path)
        return self._fs.call_s3(what, Bucket=bucket, Key=key, **more)


class S3File:
    """A file on S3, of which parts are sent while it is written, and which another process can go on with.

    Args:
        uploads: Where parts go.
        path: The path in s3fs's terms.
        url: The same for messages.
        size: How long it is going to be.
        upload: The upload to go on with.
        keep: How many bytes of it are kept; they end with a part.
        stay: Whether parts stay where there was an error, for a process that goes on.
    """

    def __init__(
        self, uploads: Uploads, path: str, url: str, size: int, *, upload: str | None, keep: int, stay: bool
    ) -> None:
        self._uploads = uploads
        self._path = path
        self._url = url
        self._least = part_bytes(size)
        self._stay = stay
        self._buffer = bytearray()
        self._sent: dict[int, Future[str]] = {}
        self._tags: dict[int, str] = {}
        self.upload = upload
        if keep and upload is not None:
            self._tags = kept_parts(uploads.parts(path, upload), keep) or {}

    def write(self, data: bytes | memoryview, /) -> object:
        """Append bytes."""
        self._buffer += data
        # What is left over is never less than a part, so that it can be one whenever a note is made.
        while len(self._buffer) >= 2 * self._least:
            self._send(self._least)
        return len(data)

    def sync(self) -> bool:
        """Bring what was written to S3; False where it is too little for a part."""
        if len(self._buffer) < self._least:
            return False
        self._send(len(self._buffer))
        self._wait()
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object, /) -> None:
        try:
            if kind is None:
                self._finish()
                return
        except BaseException:
            self._give_up()
            raise
        self._give_up()

    def _finish(self) -> None:
        with writing_to(self._url):
            if self.upload is None:  # too small for parts: one request in place of three
                self._uploads.put_whole(self._path, bytes(self._buffer))
                return
            while self._buffer:
                self._send(min(len(self._buffer), self._least))
            self._wait()
            self._uploads.finish(self._path, self.upload, self._tags)

    def _send(self, nbytes: int) -> None:
        with writing_to(self._url):
            if self.upload is None:
                self.upload = self._uploads.begin(self._path)
            for number, sent in list(self._sent.items()):
                if sent.done():
                    self._tags[number] = self._sent.pop(number).result()
            number = len(self._tags) + len(self._sent) + 1
            data = bytes(memoryview(self._buffer)[:nbytes])
            del self._buffer[:nbytes]
            self._sent[number] = self._uploads.put(self._path, self.upload, number, data)

    def _wait(self) -> None:
        with writing_to(self._url):
            for number in list(self._sent):
                self._tags[number] = self._sent.pop(number).result()

    def _give_up(self) -> None:
        # Waited for first: a part that arrives after the upload was given up stays, and costs money.
        for sent in self._sent.values():
            with contextlib.suppress(BaseException):
                sent.result()
        if self.upload is not None and not self._stay:
            self._uploads.give_up(self._path, self.upload)


def kept_parts(parts: Mapping[int, tuple[int, str]], nbytes: int) -> dict[int, str] | None:
    """Return the tags of the parts that are the first bytes of a file; None where they do not end there.

    Example:
        >>> kept_parts({1: (5, "a"), 2: (4, "b"), 3: (7, "c")}, 9)
        {1: 'a', 2: 'b'}
        >>> kept_parts({1: (5, "a"), 3: (4, "b")}, 9) is None
        True
    """
    found: dict[int, str] = {}
    for number in range(1, len(parts) + 1):
        if nbytes <= 0 or number not in parts:
            break
        size, tag = parts[number]
        nbytes -= size
        found[number] = tag
    return found if nbytes == 0 else None
