"""The checksums beside a checkpoint: SHA-256 of every file, as ``sha256sum`` writes and checks them."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.storage.threads import run_workers
from fsdp_migrate.errors import CheckpointFormatError


if TYPE_CHECKING:
    from collections.abc import Mapping

    from fsdp_migrate.checkpoint_convert.storage.folders import Folder
    from fsdp_migrate.checkpoint_convert.storage.progress import Progress
    from fsdp_migrate.checkpoint_convert.storage.threads import Advance

CHECKSUMS_FILE: Final = "SHA256SUMS"
_LINE: Final = re.compile(r"(\\?)([0-9a-f]{64})  (.+)", re.DOTALL)
# Names with a backslash or a line's end in them are escaped, and the line then starts with a backslash.
_ESCAPE: Final = re.compile(r"\\[\\nr]")
_UNESCAPED: Final = {"\\\\": "\\", "\\n": "\n", "\\r": "\r"}
_BLOCK: Final = 8 << 20
_THREADS: Final = 2
_MAX_BYTES: Final = 256 << 20


class Digest:
    """The checksum of bytes that come one after the other."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def update(self, data: bytes | memoryview) -> None:
        """Take more bytes in."""
        self._hash.update(data)

    def write(self, data: bytes | memoryview, /) -> object:
        """Take more bytes in, as a file does."""
        self._hash.update(data)
        return len(data)

    def hex(self) -> str:
        """Return the checksum of what came so far."""
        return self._hash.hexdigest()


def write_checksums(digests: Mapping[str, str]) -> bytes:
    r"""Return the bytes of the file; ``sha256sum -c SHA256SUMS`` in the folder checks them.

    Example:
        >>> write_checksums({".metadata": "0" * 64})[-14:]
        b'00  .metadata\n'
    """
    return "".join(_line(name, digest) for name, digest in sorted(digests.items())).encode()


def _line(name: str, digest: str) -> str:
    escaped = name.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return f"{'' if escaped == name else chr(92)}{digest}  {escaped}\n"


def read_checksums(data: bytes, *, where: str) -> dict[str, str]:
    """Return the checksum of each file.

    Raises:
        CheckpointFormatError: It is no such file, or a damaged one.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(data.decode("utf-8", "replace").split("\n")[:-1], 1):
        match = _LINE.fullmatch(line)
        name = "" if match is None else _ESCAPE.sub(lambda m: _UNESCAPED[m[0]], match[3])
        if match is None or name in found or line + "\n" != _line(name, match[2]):
            msg = f"{where!r} is damaged: line {number} is {line[:80]!r}."
            raise CheckpointFormatError(msg, path=where)
        found[name] = match[2]
    if not found or not data.endswith(b"\n"):
        raise CheckpointFormatError(f"{where!r} is damaged: it was cut off.", path=where)
    return found


def checksum_problems(folder: Folder, progress: Progress | None) -> dict[str, str]:
    """Hold every file of a folder against its checksum; return what is wrong, by file.

    Raises:
        CheckpointFormatError: The checksums themselves are damaged.
    """
    files = folder.files()
    where = f"{folder.url}/{CHECKSUMS_FILE}"
    if files[CHECKSUMS_FILE] > _MAX_BYTES:
        msg = f"{where!r} has {files[CHECKSUMS_FILE]} bytes; at most {_MAX_BYTES} are read."
        raise CheckpointFormatError(msg, path=where)
    expected = read_checksums(folder.read(CHECKSUMS_FILE, 0, files[CHECKSUMS_FILE]), where=where)
    problems = {name: "is missing" for name in expected if name not in files}
    unlisted = (name for name in files if name not in expected and name != CHECKSUMS_FILE)
    problems.update((name, f"has no checksum in `{CHECKSUMS_FILE}`") for name in unlisted)

    def work(name: str, advance: Advance) -> None:
        found = digest_file(folder, name, files[name], advance)
        if found != expected[name]:
            problems[name] = f"has the checksum {found[:16]}..., expected {expected[name][:16]}..."

    there = [name for name in expected if name in files]
    run_workers(
        there,
        work,
        threads=_THREADS,
        total_bytes=sum(files[name] for name in there),
        message="checking checksums",
        progress=progress,
    )
    return dict(sorted(problems.items()))


def digest_file(folder: Folder, name: str, size: int, advance: Advance) -> str:
    """Return the checksum of a file of a folder.

    Raises:
        CheckpointError: It cannot be read, or is shorter.
    """
    digest = Digest()
    buffer = bytearray(min(_BLOCK, size))
    for start in range(0, size, _BLOCK):
        view = memoryview(buffer)[: min(_BLOCK, size - start)]
        folder.read_into(name, start, view)
        digest.update(view)
        advance(len(view))
    return digest.hex()
