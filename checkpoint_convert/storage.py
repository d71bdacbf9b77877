"""Where the bytes lie: folders on this machine, and any other that fsspec knows by URL.

Sources are only ever read. Names inside a folder are relative, with ``/`` between their parts.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from fsdp_migrate.checkpoint_convert.block_cache import BlockCache
from fsdp_migrate.errors import (
    CheckpointFormatError,
    CheckpointNotFoundError,
    CheckpointReadError,
    FSDPMigrateError,
    OutputError,
)


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


Location = str | os.PathLike[str]

_MAX_OPEN_FILES: Final = 64
# What the file systems of fsspec call the size, the version and the time of the last change.
_STAMP_FIELDS: Final = ("size", "ETag", "etag", "generation", "md5Hash", "LastModified", "mtime", "created")


class Folder(Protocol):
    """A folder of files that are read by ranges."""

    url: str

    def files(self, max_depth: int | None = None) -> Mapping[str, int]:
        """Return every file below the folder with its size; links are followed for the size only.

        Args:
            max_depth: How many folders down to look; None for all the way.
        """
        ...

    def has(self, name: str) -> bool:
        """Tell whether there is a file of this name."""
        ...

    def stamps(self, names: Iterable[str]) -> Mapping[str, str]:
        """Return what tells each file from one that takes its place later; files that are gone are left out.

        Here these are size, time of the last change and inode; behind URLs whatever the service tells.
        """
        ...

    def leads_outside(self, name: str) -> bool:
        """Tell whether ``name`` is a link, or lies behind one, to something outside the folder."""
        ...

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Return exactly ``length`` bytes.

        Raises:
            CheckpointFormatError: The file is shorter.
        """
        ...

    def read_into(self, name: str, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer``.

        Raises:
            CheckpointFormatError: The file is shorter.
        """
        ...

    def close(self) -> None:
        """Close what is open."""
        ...


def is_url(location: Location) -> bool:
    """Tell whether a location is an fsspec URL of something else than this machine's files."""
    text = os.fspath(location)
    return "://" in text and not text.startswith(("file://", "local://"))


def local_path(location: Location) -> Path:
    """Return a location on this machine as a path."""
    text = os.fspath(location)
    for scheme in ("file://", "local://"):
        text = text.removeprefix(scheme)
    return Path(text)


def open_folder(location: Location) -> Folder:
    """Open a folder for reading, or one file as a folder that holds nothing else, unpacked if it is packed.

    Raises:
        CheckpointNotFoundError: There is nothing there.
        CheckpointFormatError: It is neither, or a packed file that is damaged.
    """
    folder = open_folder_at(location)
    name = os.fspath(location).rstrip("/").rpartition("/")[2]
    from fsdp_migrate.checkpoint_convert.unpacked import is_packed, open_unpacked

    if is_packed(name) and getattr(folder, "only", None) == name:
        folder.close()
        return open_unpacked(location)
    return folder


def open_folder_at(location: Location) -> Folder:
    """Open a folder for reading, or one file as a folder that holds nothing else, as it is.

    Raises:
        CheckpointNotFoundError: There is nothing there.
        CheckpointFormatError: It is neither.
    """
    if is_url(location):
        url = os.fspath(location).rstrip("/")
        if _kind_at(url) == "file":
            return FsspecFolder(url.rpartition("/")[0], only=url.rpartition("/")[2])
        return FsspecFolder(url)
    path = local_path(location)
    try:
        if path.is_file():
            return LocalFolder(path.parent, only=path.name)
        return LocalFolder(path)
    except PermissionError as error:
        if isinstance(error, CheckpointReadError):
            raise
        raise read_error(f"{str(path)!r} could not be read: {error.strerror}.", path, error) from error


def refuse_links(folder: Folder, names: Iterable[str]) -> None:
    """Check that no file of a checkpoint leads out of its folder.

    A checkpoint of somebody else could otherwise bring any file of this machine into an output.

    Raises:
        CheckpointFormatError: One does.
    """
    for name in names:
        if folder.leads_outside(name):
            msg = (
                f"`{name}` in {folder.url!r} is a link to something outside the checkpoint, so it is not "
                "read. Copy the checkpoint with its links followed (cp -rL)."
            )
            raise CheckpointFormatError(msg, path=f"{folder.url}/{name}")


class LocalFolder:
    """A folder on this machine; reads by ``pread``, safe to use from several threads."""

    def __init__(self, path: Path, *, only: str | None = None) -> None:
        if not path.exists():
            msg = f"There is nothing at {str(path)!r}."
            raise CheckpointNotFoundError(msg, path=path)
        if not path.is_dir():
            raise CheckpointFormatError(f"{str(path)!r} is not a folder.", path=path)
        self.path = path
        self.url = str(path)
        self._real = path.resolve()
        self._blobs = _blobs_of(self._real)
        self.only = only
        self._open: OrderedDict[str, _OpenFile] = OrderedDict()
        self._lock = threading.Lock()

    def files(self, max_depth: int | None = None) -> Mapping[str, int]:
        """Return every file below the folder with its size."""
        if self.only is not None:
            return {self.only: self._size(self.only)}
        found: dict[str, int] = {}
        for base, folders, names in os.walk(self.path, onerror=self._unreadable):
            folders.sort()
            if max_depth is not None and len(Path(base).relative_to(self.path).parts) >= max_depth:
                folders.clear()
            for name in sorted(names):
                full = Path(base, name)
                with contextlib.suppress(FileNotFoundError), self._reading(str(full.relative_to(self.path))):
                    try:
                        status = full.stat()
                    except OSError as error:
                        if error.errno == errno.ELOOP:  # a link that leads to itself is no file
                            continue
                        raise
                    # Opening a pipe would wait for its other end.
                    if stat.S_ISREG(status.st_mode):
                        found[full.relative_to(self.path).as_posix()] = status.st_size
        return found

    def _size(self, name: str) -> int:
        try:
            with self._reading(name):
                return (self.path / name).stat().st_size
        except FileNotFoundError as error:
            msg = f"{self._at(name)} is not there."
            raise CheckpointNotFoundError(msg, path=self.path / name) from error

    def has(self, name: str) -> bool:
        """Tell whether there is a file of this name."""
        with self._reading(name):
            return self.only in (None, name) and (self.path / name).is_file()

    def stamps(self, names: Iterable[str]) -> Mapping[str, str]:
        """Return size, time of the last change and inode of each file."""
        found: dict[str, str] = {}
        for name in names:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError), self._reading(name):
                status = (self.path / name).stat()
                found[name] = f"{status.st_size}:{status.st_mtime_ns}:{status.st_ino}"
        return found

    def leads_outside(self, name: str) -> bool:
        """Tell whether a name leads out of the folder by a link."""
        if name == self.only:
            # Whoever names a link means what it leads to.
            return False
        target = (self.path / name).resolve()
        is_inside = target == self._real or self._real in target.parents
        return not is_inside and (self._blobs is None or target.parent != self._blobs)

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Return exactly ``length`` bytes."""
        buffer = bytearray(length)
        self.read_into(name, offset, memoryview(buffer))
        return bytes(buffer)

    def read_into(self, name: str, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer``."""
        opened = self._acquire(name)
        try:
            while len(buffer):
                with self._reading(name, offset):
                    count = os.preadv(opened.fd, [buffer], offset)
                if count == 0:
                    msg = f"{self._at(name)} ends at byte {offset}, {len(buffer)} bytes too early."
                    raise CheckpointFormatError(msg, path=self.path / name)
                offset += count
                buffer = buffer[count:]
        finally:
            self._release(opened)

    def close(self) -> None:
        """Close what is open."""
        with self._lock:
            for opened in self._open.values():
                os.close(opened.fd)
            self._open.clear()

    def _unreadable(self, error: OSError) -> None:
        """Raise for a folder that cannot be listed: what is in it would be left out without a word."""
        if not isinstance(error, FileNotFoundError):
            with self._reading(os.path.relpath(error.filename or self.path, self.path)):
                raise error

    def _at(self, name: str) -> str:
        return repr(str(self.path / name))

    @contextlib.contextmanager
    def _reading(self, name: str, offset: int | None = None) -> Iterator[None]:
        """Say which file the system could not read; that one is not there is another matter."""
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            at = "" if offset is None else f" at byte {offset}"
            msg = f"{self._at(name)} could not be read{at}: {error.strerror or error}."
            raise read_error(msg, self.path / name, error) from error

    def _acquire(self, name: str) -> _OpenFile:
        with self._lock:
            opened = self._open.get(name)
            if opened is None:
                try:
                    with self._reading(name):
                        fd = os.open(self.path / name, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
                except FileNotFoundError as error:
                    msg = f"{self._at(name)} is not there."
                    raise CheckpointNotFoundError(msg, path=self.path / name) from error
                opened = self._open[name] = _OpenFile(fd)
            self._open.move_to_end(name)
            opened.users += 1
            self._close_idle()
            return opened

    def _release(self, opened: _OpenFile) -> None:
        with self._lock:
            opened.users -= 1

    def _close_idle(self) -> None:
        for name in list(self._open)[: len(self._open) - _MAX_OPEN_FILES]:
            if self._open[name].users == 0:
                os.close(self._open.pop(name).fd)


def _blobs_of(snapshot: Path) -> Path | None:
    """Return where the files of a snapshot lie in the cache of Hugging Face's hub; None where it is none.

    A snapshot, ``models--ORG--NAME/snapshots/REVISION``, is links to ``models--ORG--NAME/blobs/HASH``, and to
    nothing deeper, so no other file of this machine can be read through them.
    """
    cache = snapshot.parent.parent
    blobs = cache / "blobs"
    is_cache = snapshot.parent.name == "snapshots" and cache.name.startswith("models--")
    return blobs if is_cache and blobs.is_dir() and not blobs.is_symlink() else None


class _OpenFile:
    __slots__ = ("fd", "users")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.users = 0


class FsspecFolder:
    """A folder behind an fsspec URL."""

    def __init__(self, url: str, *, only: str | None = None) -> None:
        self.url = url.rstrip("/")
        self.only = only
        self.fs, self.root = resolve_url(self.url)
        self._cache = BlockCache(self._fetch)
        if only is None and _kind_at(self.url) != "directory":
            raise CheckpointFormatError(f"{self.url!r} is not a folder.", path=self.url)

    def files(self, max_depth: int | None = None) -> Mapping[str, int]:
        """Return every file below the folder with its size."""
        prefix = self.root.rstrip("/") + "/"
        with reading_from(self.url):
            if self.only is not None:
                return {self.only: int(self.fs.size(prefix + self.only))}
            depth = None if max_depth is None else max_depth + 1
            found = self.fs.find(self.root, maxdepth=depth, detail=True)
        return {name.removeprefix(prefix): int(info["size"]) for name, info in sorted(found.items())}

    def has(self, name: str) -> bool:
        """Tell whether there is a file of this name."""
        return self.only in (None, name) and bool(self.fs.isfile(f"{self.root}/{name}"))

    def stamps(self, names: Iterable[str]) -> Mapping[str, str]:
        """Return what the service tells of each file."""
        prefix = self.root.rstrip("/") + "/"
        wanted = set(names)
        with reading_from(self.url):
            self.fs.invalidate_cache(self.root)
            if self.only is None:
                found = self.fs.find(self.root, detail=True)
            else:
                found = {prefix + self.only: self.fs.info(prefix + self.only)}
        return {
            short: ":".join(str(info[field]) for field in _STAMP_FIELDS if info.get(field) is not None)
            for name, info in found.items()
            if (short := name.removeprefix(prefix)) in wanted
        }

    def leads_outside(self, name: str) -> bool:
        """Tell whether a name leads out of the folder by a link."""
        del name
        return False

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Return exactly ``length`` bytes."""
        if length == 0:
            return b""
        with reading_from(f"{self.url}/{name}"):
            data = self._cache.read(name, offset, length)
        if len(data) != length:
            msg = f"'{self.url}/{name}' ends {length - len(data)} bytes too early."
            raise CheckpointFormatError(msg, path=f"{self.url}/{name}")
        return data

    def read_into(self, name: str, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer``."""
        buffer[:] = self.read(name, offset, len(buffer))

    def close(self) -> None:
        """Nothing stays open."""

    def _fetch(self, name: str, start: int, stop: int) -> bytes:
        data: bytes = self.fs.cat_file(f"{self.root}/{name}", start=start, end=stop)
        return data


def _kind_at(url: str) -> str:
    """Return what is at a URL, ``"file"`` or ``"directory"``."""
    fs, path = resolve_url(url)
    with reading_from(url):
        return str(fs.info(path)["type"])


@contextlib.contextmanager
def reading_from(url: str) -> Iterator[None]:
    """Turn what the client of a service says into an error of this package."""
    try:
        yield
    except FileNotFoundError as error:
        raise CheckpointNotFoundError(f"There is nothing at {url!r}.", path=url) from error
    except Exception as error:
        if _is_ours(error):
            raise
        wrapped = CheckpointReadError(_say(url, "read", error), path=url)
        wrapped.errno = getattr(error, "errno", None)
        raise wrapped from error


@contextlib.contextmanager
def writing_to(url: str) -> Iterator[None]:
    """Turn what the client of a service says into an :class:`OutputError`."""
    try:
        yield
    except Exception as error:
        if _is_ours(error) or isinstance(error, FileExistsError):
            raise
        wrapped = OutputError(_say(url, "written", error), path=url)
        wrapped.errno = getattr(error, "errno", None)
        raise wrapped from error


def _is_ours(error: Exception) -> bool:
    """Tell whether an error is one of this package, or a mistake in it, and not of a service."""
    is_builtin = type(error).__module__ == "builtins" and not isinstance(error, OSError)
    return isinstance(error, FSDPMigrateError) or is_builtin


def _say(url: str, what: str, error: Exception) -> str:
    # The classes of botocore, aiohttp, gcsfs and others; none of them is a dependency.
    kind = type(error).__name__
    if isinstance(error, PermissionError):
        return (
            f"{url!r} could not be {what}: access is denied ({error}). Use credentials of somebody who may, "
            "or have the permission given."
        )
    if "Credential" in kind or "TokenRetrieval" in kind:
        return (
            f"{url!r} could not be {what}: there are no credentials for it, or they have run out ({error}). "
            "Give them as the service's own tools take them; for S3 in AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or by AWS_PROFILE."
        )
    if isinstance(error, FileNotFoundError):
        return f"{url!r} could not be {what}: the bucket, or the folder, is not there ({error})."
    return f"{url!r} could not be {what}: {kind}: {error}."


def read_error(message: str, path: object, error: OSError) -> CheckpointReadError:
    """Return the error for something that the system could not read, with the system's own number."""
    wrapped = CheckpointReadError(message, path=path)
    wrapped.errno = error.errno
    return wrapped


def resolve_url(url: str) -> tuple[Any, str]:
    """Return the fsspec file system of a URL, and the path in it.

    Raises:
        CheckpointNotFoundError: fsspec knows no such kind of URL, or lacks its package.
    """
    import fsspec

    try:
        fs, path = fsspec.core.url_to_fs(url)
    except (ValueError, ImportError) as error:
        raise CheckpointNotFoundError(f"{url!r} cannot be opened: {error}", path=url) from error
    return fs, str(path).rstrip("/")
