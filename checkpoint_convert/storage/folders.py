"""What a folder is, wherever it lies, and folders on this machine.

Sources are only ever read. Names inside a folder are relative, with ``/`` between their parts.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import threading
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from fsdp_migrate.checkpoint_convert.storage.errors import read_error
from fsdp_migrate.errors import (
    CheckpointFormatError,
    CheckpointNotFoundError,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping


Location = str | os.PathLike[str]

_MAX_OPEN_FILES: Final = 64


class Folder(Protocol):
    """A folder of files that are read by ranges."""

    url: str

    def files(self, max_depth: int | None = None) -> Mapping[str, int]:
        """Return every file below the folder with its size; links are followed for the size only.

        Args:
            max_depth: How many folders down to look; None for all the way.
        """
        ...

    def below(self, name: str) -> Folder:
        """Return a folder in this one."""
        ...

    def has(self, name: str) -> bool:
        """Tell whether there is a file of this name."""
        ...

    @property
    def read_files(self) -> Collection[str] | None:
        """Return the files that were read from, where looking at all once more costs more; None elsewhere."""
        ...

    def stamps(self, names: Iterable[str], *, each: bool = False) -> Mapping[str, str]:
        """Return what tells each file from one that takes its place later; files that are gone are left out.

        Here these are size, time of the last change and inode; behind URLs whatever the service tells.

        Args:
            names: The files.
            each: Ask for each by itself and for no list of all, where that is another matter.
        """
        ...

    def changes(self, names: Iterable[str]) -> Mapping[str, tuple[int, int]]:
        """Return when the system last noted a change of each file, and how many names the file has.

        Nobody can put that time back. Behind URLs there is no such thing, and nothing is returned.
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


def digest_of(data: bytes | memoryview) -> bytes:
    """Return a short text that tells what was read from anything else."""
    return hashlib.blake2b(data, digest_size=16).digest()


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
        self._seen: dict[tuple[str, int, int], bytes] | None = None
        self._note_above: Callable[[str, int, memoryview], None] | None = None

    @contextlib.contextmanager
    def noting(self) -> Iterator[dict[tuple[str, int, int], bytes]]:
        """Note in the block what is read: file, offset and length, and a digest of it."""
        seen: dict[tuple[str, int, int], bytes] = {}
        self._seen = seen
        try:
            yield seen
        finally:
            self._seen = None

    def files(self, max_depth: int | None = None) -> Mapping[str, int]:
        """Return every file below the folder with its size."""
        if self.only is not None:
            return {self.only: self._size(self.only)}
        found: dict[str, int] = {}
        for base, folders, names in os.walk(self.path, onerror=self._unreadable):
            folders.sort()  # os.walk has the system's order, which differs from run to run
            if max_depth is not None and len(Path(base).relative_to(self.path).parts) >= max_depth:
                folders.clear()
            for name in sorted(names):
                full = Path(base, name)
                # A file may go away between the list and the question; that it was needed is said later.
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

    def below(self, name: str) -> LocalFolder:
        """Return a folder in this one."""
        folder = LocalFolder(self.path / name)
        folder._note_above = lambda file, offset, data: self._note(f"{name}/{file}", offset, data)
        return folder

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

    @property
    def read_files(self) -> Collection[str] | None:
        """Return None: a look at all files costs little."""
        return None

    def stamps(self, names: Iterable[str], *, each: bool = False) -> Mapping[str, str]:
        """Return size, time of the last change and inode of each file."""
        del each
        found: dict[str, str] = {}
        for name in names:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError), self._reading(name):
                status = (self.path / name).stat()
                found[name] = f"{status.st_size}:{status.st_mtime_ns}:{status.st_ino}"
        return found

    def changes(self, names: Iterable[str]) -> Mapping[str, tuple[int, int]]:
        """Return the time of the last change of each file's inode, and the number of its links."""
        found: dict[str, tuple[int, int]] = {}
        for name in names:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError), self._reading(name):
                status = (self.path / name).stat()
                found[name] = status.st_ctime_ns, status.st_nlink
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
        whole, start = buffer, offset
        opened = self._acquire(name)
        try:
            while len(buffer):
                with self._reading(name, offset):
                    # Linux hands out at most 2 GiB at once, and fewer bytes whenever it likes.
                    count = os.preadv(opened.fd, [buffer], offset)
                if count == 0:
                    msg = f"{self._at(name)} ends at byte {offset}, {len(buffer)} bytes too early."
                    raise CheckpointFormatError(msg, path=self.path / name)
                offset += count
                buffer = buffer[count:]
        finally:
            self._release(opened)
        self._note(name, start, whole)

    def _note(self, name: str, offset: int, data: memoryview) -> None:
        if self._note_above is not None:
            self._note_above(name, offset, data)
        elif self._seen is not None:
            self._seen[name, offset, len(data)] = digest_of(data)

    def close(self) -> None:
        """Close what is open."""
        with self._lock:
            while self._open:
                _close(self._open.popitem()[1])

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
        # The ones that were not used for longest. What a thread reads from stays open, so that there may be
        # more for a while.
        for name in list(self._open)[: len(self._open) - _MAX_OPEN_FILES]:
            if self._open[name].users == 0:
                _close(self._open.pop(name))


def _close(opened: _OpenFile) -> None:
    """Close a file that was only read; it is closed, whatever the system says about it."""
    with contextlib.suppress(OSError):
        os.close(opened.fd)


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
