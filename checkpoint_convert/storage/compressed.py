"""Compressed files and tar archives, as Composer writes them: unpacked beside, once, and read from there.

Compressed bytes cannot be read by ranges, so such a file is unpacked into the folder for temporary files
(``TMPDIR``) before anything else, and removed from there when the process ends. Which libraries read which
compression is fsspec's registry: gzip, bzip2, xz and lzma come with Python, lz4 and zstd with the extra
``compression``.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tarfile
import tempfile
import threading
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, NoReturn

from fsdp_migrate.checkpoint_convert.storage.folders import LocalFolder, is_url, local_path
from fsdp_migrate.checkpoint_convert.storage.fsspec import open_folder_at, resolve_url
from fsdp_migrate.errors import (
    CheckpointFormatError,
    CheckpointReadError,
    FSDPMigrateError,
    UnsupportedFeatureError,
)
from fsdp_migrate.findings import named


if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from typing_extensions import Self

    from fsdp_migrate.checkpoint_convert.storage.folders import Folder, Location


_COMPRESSIONS: Final = {
    "bz2": "bz2",
    "gz": "gzip",
    "lz4": "lz4",
    "lzma": "lzma",
    "xz": "xz",
    "zst": "zstd",
}
# Composer writes these too, by a program that no library of Python's stands for.
_UNKNOWN: Final = ("lzo",)
_WEIGHTS: Final = ("pt", "pth", "bin", "ckpt")
_STATES: Final = "composer_states.pt"
_BLOCK: Final = 4 << 20
_SPARE: Final = 256 << 20
_MAX_MEMBERS: Final = 10_000
_MAX_HEADER: Final = 1 << 20
# What torch.save writes begins so, since 1.6 and before.
_SAVED_STARTS: Final = (b"PK\x03\x04", b"\x80\x02\x8a\nl\xfc\x9cF\xf9")
# Weights hardly shrink, and the moments of an optimizer that has done no step are zeros.
_MOST_PACKED: Final = 200
_ANY_SIZE: Final = 1 << 30


def is_packed(name: str) -> bool:
    """Tell whether a file's name is that of a compressed checkpoint or of an archive of one.

    Example:
        >>> [is_packed(name) for name in ("a.pt.gz", "a.tar", "a.tgz", "a.pt", "notes.gz")]
        [True, True, True, False, False]
    """
    parts = name.lower().split(".")
    if parts[-1] in ("tar", "tgz"):
        return True
    known = parts[-1] in _COMPRESSIONS or parts[-1] in _UNKNOWN
    return known and len(parts) > 2 and parts[-2] in (*_WEIGHTS, "tar")


def is_saved_as_it_is(folder: Folder, name: str) -> bool:
    """Tell whether a file that is named as a packed one is what ``torch.save`` wrote: ``best.pth.tar``."""
    most = max(map(len, _SAVED_STARTS))
    size = folder.files(0).get(name, 0)
    return folder.read(name, 0, min(size, most)).startswith(_SAVED_STARTS)


class UnpackedFolder(LocalFolder):
    """The one file that was packed, as a folder; ``url`` is where the packed one is."""

    def __init__(self, unpacked: _Unpacked) -> None:
        super().__init__(Path(unpacked.folder.name), only=unpacked.name)
        self.url = unpacked.url
        self.others = unpacked.others
        self._unpacked = unpacked
        unpacked.users += 1

    def stamps(self, names: Iterable[str], *, each: bool = False) -> Mapping[str, str]:
        """Return the size of what was unpacked, and what tells the packed file from a later one."""
        del each
        stamp = _stamp(self.url)
        size = self.files()[self._unpacked.name]
        return {} if stamp is None else {n: f"{size}:{stamp}" for n in names if n == self._unpacked.name}

    def changes(self, names: Iterable[str]) -> Mapping[str, tuple[int, int]]:
        """Return when the packed file changed last."""
        parent, name = _split(self.url)
        folder = open_folder_at(parent)
        try:
            found = folder.changes([name])
        finally:
            folder.close()
        return {n: found[name] for n in names if n == self._unpacked.name and name in found}

    def close(self) -> None:
        """Close what is open; the unpacked file stays for whoever opens it next."""
        super().close()
        self._unpacked.users = max(self._unpacked.users - 1, 0)


class _Unpacked:
    def __init__(self, url: str, stamp: str | None) -> None:
        self.url = url
        self.stamp = stamp
        self.folder = tempfile.TemporaryDirectory(prefix="fsdp-migrate-")
        self.name = ""
        self.others: tuple[str, ...] = ()
        self.users = 0
        self.size = 0


_KNOWN: Final[dict[str, _Unpacked]] = {}
_LOCK: Final = threading.Lock()


def open_unpacked(location: Location) -> UnpackedFolder:
    """Unpack a file, unless that was done already, and open what was in it.

    Raises:
        CheckpointFormatError: It is damaged, holds no state, or is larger than there is room for.
        UnsupportedFeatureError: Its compression needs a package that is not installed.
    """
    url = os.fspath(location)
    stamp = _stamp(url)
    # One at a time: two threads that open one file would unpack it twice, and need the room for both.
    with _LOCK:
        known = _KNOWN.get(url)
        if known is None or known.stamp != stamp:
            _forget(url)
            known = _KNOWN[url] = _unpack(url, stamp)
        return UnpackedFolder(known)


def _forget(url: str) -> None:
    """Remove what was unpacked of this file, and of others that nobody reads any more."""
    for other in [u for u, unpacked in _KNOWN.items() if u == url or not unpacked.users]:
        _KNOWN.pop(other).folder.cleanup()


@atexit.register
def _remove_all() -> None:
    for url in list(_KNOWN):
        _KNOWN.pop(url).folder.cleanup()


def _split(url: str) -> tuple[str, str]:
    parent, name = os.path.split(url) if not is_url(url) else url.rsplit("/", 1)
    return parent or ".", name


def _stamp(url: str) -> str | None:
    folder = open_folder_at(url)  # the one file: above it may lie a whole bucket
    try:
        return folder.stamps([_split(url)[1]]).get(_split(url)[1])
    finally:
        folder.close()


def _unpack(url: str, stamp: str | None) -> _Unpacked:
    unpacked = _Unpacked(url, stamp)
    name = url.rstrip("/").rpartition("/")[2]
    try:
        unpacked.size = _size_of(url)
        with _opened(url) as packed, _decompressed(packed, name, url) as stream:
            if _is_tar(name):
                _take_member(stream, name, unpacked)
            else:
                unpacked.name = name.rpartition(".")[0]
                _copy(stream, unpacked)
    except BaseException as error:
        unpacked.folder.cleanup()
        if not isinstance(error, Exception) or isinstance(error, FSDPMigrateError | MemoryError):
            raise
        # Each library of these has errors of its own.
        msg = f"{url!r} could not be unpacked: {type(error).__name__}: {str(error)[:200]}. Is it whole?"
        raise CheckpointFormatError(msg, path=url) from error
    return unpacked


def _size_of(url: str) -> int:
    if not is_url(url):
        return local_path(url).stat().st_size
    fs, inside = resolve_url(url)
    return int(fs.size(inside) or 0)


def _opened(url: str) -> IO[bytes]:
    if not is_url(url):
        return local_path(url).open("rb")
    fs, inside = resolve_url(url)
    stream: IO[bytes] = fs.open(inside, "rb")
    return stream


def _is_tar(name: str) -> bool:
    return name.lower().endswith((".tar", ".tgz")) or ".tar." in name.lower()


def _decompressed(packed: IO[bytes], name: str, url: str) -> Any:
    from fsspec.compression import compr

    suffix = name.lower().rpartition(".")[2]
    if suffix == "tar":
        return packed
    kind = _COMPRESSIONS.get("gz" if suffix == "tgz" else suffix)
    if kind is None or kind not in compr:
        how = "" if kind is None else " Install it: pip install 'fsdp-migrate[compression]'."
        msg = (
            f"{url!r} is compressed as `.{suffix}`, for which no library is installed.{how} Or unpack the "
            "file, and convert what was in it."
        )
        raise UnsupportedFeatureError(msg, feature=f"{suffix} files")
    return compr[kind](packed, mode="rb")


class _Member(tarfile.TarInfo):
    """The header of a file in an archive; a long name, which is read at once, is not of any length."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Read a header."""
        member = super().frombuf(buf, encoding, errors)
        if not member.isreg() and member.size > _MAX_HEADER:
            msg = (
                f"An archive holds a header of {member.size} bytes. No program writes that; it was not read."
            )
            raise CheckpointFormatError(msg)
        if member.type == tarfile.GNUTYPE_SPARSE:
            raise _sparse()
        return member

    def _refuse_sparse(self, *arguments: object) -> NoReturn:
        raise _sparse()

    # What tarfile calls where extended headers say that a file is sparse: a list of any length follows.
    _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _refuse_sparse


def _sparse() -> CheckpointFormatError:
    return CheckpointFormatError(
        "An archive holds a sparse file: a few bytes can give it any size. Composer writes none; "
        "unpack it with `tar`, and convert what was in it."
    )


def _take_member(stream: IO[bytes], name: str, unpacked: _Unpacked) -> None:
    """Take the state out of an archive; nothing else of it is unpacked, and no path in it is followed."""
    others: list[str] = []
    # As a stream, without going back: the archive may be compressed, or behind a URL.
    with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Member) as archive:
        for count, member in enumerate(archive):
            if count >= _MAX_MEMBERS:
                msg = f"{name!r} holds more than {_MAX_MEMBERS} files; Composer writes a few."
                raise CheckpointFormatError(msg, path=unpacked.url)
            if not member.isreg():
                continue
            content = archive.extractfile(member) if member.name.rpartition("/")[2] == _STATES else None
            if content is None or unpacked.name:
                others.append(member.name)
                continue
            unpacked.name = _STATES
            _copy(content, unpacked)
    unpacked.others = tuple(others)
    if not unpacked.name:
        held = named(other[:60] for other in others) or "nothing"
        msg = f"{name!r} holds {held}; expected `{_STATES}`, as Composer writes it."
        raise CheckpointFormatError(msg, path=unpacked.url)


def _copy(stream: IO[bytes], unpacked: _Unpacked) -> None:
    """Copy a stream to a file, as long as there is room: a small file can unpack to anything."""
    folder = unpacked.folder.name
    most = max(_MOST_PACKED * unpacked.size, _ANY_SIZE)
    with Path(folder, unpacked.name).open("wb") as file:
        # Each limit is asked before a block is written: what is unpacked is known only when it is there.
        while block := stream.read(_BLOCK):
            if not file.tell() and not block.startswith(_SAVED_STARTS):
                msg = f"{unpacked.url!r} holds no file of torch.save: it starts with {bytes(block[:8])!r}."
                raise CheckpointFormatError(msg, path=unpacked.url)
            if file.tell() + len(block) > most:
                msg = (
                    f"{unpacked.url!r} has {unpacked.size} bytes and unpacks to more than {most}. No "
                    "checkpoint does; unpack it yourself if you trust it, and convert what was in it."
                )
                raise CheckpointFormatError(msg, path=unpacked.url)
            if free_space(folder) < len(block) + _SPARE:
                msg = (
                    f"{unpacked.url!r} unpacks to more than {file.tell()} bytes, and {folder!r} has no room "
                    "for it. Set TMPDIR to a folder with more, or unpack the file there."
                )
                raise CheckpointReadError(msg, path=unpacked.url)
            file.write(block)


def free_space(folder: str) -> int:
    """Return how many bytes there is room for."""
    return shutil.disk_usage(folder).free
