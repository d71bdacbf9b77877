"""Folders behind URLs that fsspec knows, and how a folder is opened wherever it lies."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from fsdp_migrate.checkpoint_convert.storage.block_cache import BlockCache
from fsdp_migrate.checkpoint_convert.storage.errors import read_error, reading_from
from fsdp_migrate.checkpoint_convert.storage.folders import Folder, LocalFolder, Location, is_url, local_path
from fsdp_migrate.checkpoint_convert.storage.listing import (
    files_in,
    is_flat,
    kind_at,
    list_down,
    list_files,
    look_at,
)
from fsdp_migrate.errors import (
    CheckpointError,
    CheckpointFormatError,
    CheckpointNotFoundError,
    CheckpointReadError,
)


if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence


# What the file systems of fsspec call the version, and what the time of the last change.
_VERSIONS: Final = ("ETag", "etag", "generation", "md5Hash")
_TIMES: Final = ("LastModified", "mtime", "created")
_ASKED_AT_ONCE: Final = 8


def open_folder_at(location: Location) -> Folder:
    """Open a folder for reading, or one file as a folder that holds nothing else, as it is.

    Raises:
        CheckpointNotFoundError: There is nothing there.
        CheckpointFormatError: It is neither.
    """
    if is_url(location):
        url = os.fspath(location).rstrip("/")
        kind, infos = _look_at(url)
        if kind == "file":
            return FsspecFolder(url.rpartition("/")[0], only=url.rpartition("/")[2])
        return FsspecFolder(url, is_there=True, infos=infos)
    path = local_path(location)
    try:
        if path.is_file():
            return LocalFolder(path.parent, only=path.name)
        return LocalFolder(path)
    except OSError as error:  # no permission, or a name that is too long
        if isinstance(error, CheckpointError):
            raise
        raise read_error(f"{str(path)!r} could not be read: {error.strerror}.", path, error) from error


def open_parent(location: Location) -> Folder:
    """Open the folder in which a file is known to be."""
    return FsspecFolder(os.fspath(location), is_there=True) if is_url(location) else open_folder_at(location)


class FsspecFolder:
    """A folder behind an fsspec URL.

    Args:
        url: Where.
        only: The one file of it that is meant.
        is_there: It is known to be there.
        infos: What is known to lie directly in it.
    """

    def __init__(
        self,
        url: str,
        *,
        only: str | None = None,
        is_there: bool = False,
        infos: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self.only = only
        self.fs, self.root = resolve_url(self.url)
        self._cache = BlockCache(self._fetch)
        # The files that were read from.
        self._read: set[str] = set()
        # Where this folder lies in the one whose cache it reads by.
        self._place = ""
        # What a list of everything said; and until it was asked what tells the files from others.
        self._all = None if infos is None else files_in(self.root, infos)
        self._listed = self._all
        if only is None and not is_there and _look_at(self.url)[0] != "directory":
            raise CheckpointFormatError(f"{self.url!r} is not a folder.", path=self.url)

    def files(self, max_depth: int | None = None) -> Mapping[str, int]:
        """Return every file below the folder with its size."""
        prefix = self.root.rstrip("/") + "/"
        with reading_from(self.url):
            if self.only is not None:
                return {self.only: int(self.fs.size(prefix + self.only))}
            found, is_whole = (
                (self._all, False) if self._all is not None else list_down(self.fs, self.root, max_depth)
            )
        if is_whole:
            self._all = self._listed = found
        sizes = {name.removeprefix(prefix): int(info["size"]) for name, info in sorted(found.items())}
        return {n: size for n, size in sizes.items() if max_depth is None or n.count("/") <= max_depth}

    def below(self, name: str) -> FsspecFolder:
        """Return a folder in this one; what is known of this one is known of it."""
        inner = FsspecFolder(f"{self.url}/{name}", is_there=True)
        if self._all is not None:
            start = f"{inner.root}/"
            inner._all = {path: info for path, info in self._all.items() if path.startswith(start)}
        inner._cache, inner._read, inner._place = self._cache, self._read, f"{self._place}{name}/"
        return inner

    def has(self, name: str) -> bool:
        """Tell whether there is a file of this name."""
        with reading_from(f"{self.url}/{name}"):
            return self.only in (None, name) and kind_at(self.fs, f"{self.root}/{name}") == "file"

    @property
    def read_files(self) -> Collection[str] | None:
        """Return the files that were read from, where a list of all has its price."""
        return self._read if is_flat(self.fs) else None

    def stamps(self, names: Iterable[str], *, each: bool = False) -> Mapping[str, str]:
        """Return what the service tells of each file."""
        prefix = self.root.rstrip("/") + "/"
        wanted = set(names)
        if each:
            return self._stamps_of_each(sorted(wanted))
        # Once, the list that was made on opening will do: whoever asks again asks for what has changed since.
        found, self._listed = self._listed, None
        with reading_from(self.url):
            if found is None:
                self.fs.invalidate_cache()
                if self.only is None:
                    found = list_files(self.fs, self.root)
                else:
                    found = {prefix + self.only: self.fs.info(prefix + self.only)}
        return {
            short: _stamp(info)
            for name, info in found.items()
            if (short := name.removeprefix(prefix)) in wanted
        }

    def _stamps_of_each(self, names: Sequence[str]) -> Mapping[str, str]:
        """Ask for each file: services charge a list of everything ten times as much."""

        def ask(name: str) -> str | None:
            try:
                return _stamp(self.fs.info(f"{self.root}/{name}"))
            except FileNotFoundError:
                return None

        with reading_from(self.url), ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
            self.fs.invalidate_cache()
            found = zip(names, pool.map(ask, names), strict=True)
            return {name: stamp for name, stamp in found if stamp is not None}

    def changes(self, names: Iterable[str]) -> Mapping[str, tuple[int, int]]:
        """Return nothing: services tell no such times."""
        del names
        return {}

    def leads_outside(self, name: str) -> bool:
        """Tell whether a name leads out of the folder by a link."""
        del name
        return False

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Return exactly ``length`` bytes."""
        if length == 0:
            return b""
        with reading_from(f"{self.url}/{name}"):
            data = self._cache.read(self._place + name, offset, length)
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
        self._read.add(name)
        data: bytes = self.fs.cat_file(f"{self.root}/{name}", start=start, end=stop)
        if len(data) > stop - start:
            msg = (
                f"'{self.url}/{name}' was asked for {stop - start} bytes from byte {start} on, and "
                f"{len(data)} came. The service, or something on the way to it, does not support ranges. "
                "Copy the checkpoint to this machine first."
            )
            raise CheckpointReadError(msg, path=f"{self.url}/{name}")
        return data


def _stamp(info: Mapping[str, Any]) -> str:
    """Return the size of a file, and what tells it from others of that size.

    Times only where there is no version: a list of some services has fractions of seconds, and what they say
    of one file has not. So with quotes about a version.
    """
    fields = [field for field in _VERSIONS if info.get(field)] or _TIMES
    known = (str(info[field]).strip('"') for field in fields if info.get(field) is not None)
    return ":".join((str(info["size"]), *known))


def _look_at(url: str) -> tuple[str, Sequence[Mapping[str, Any]] | None]:
    """Return what is at a URL, ``"file"`` or ``"directory"``, and what lies in it where that was told."""
    fs, path = resolve_url(url)
    with reading_from(url):
        # What an earlier conversion of this process saw may be long ago.
        fs.invalidate_cache()
        return look_at(fs, path)


def resolve_url(url: str) -> tuple[Any, str]:
    """Return the fsspec file system of a URL, and the path in it.

    Raises:
        CheckpointNotFoundError: fsspec knows no such kind of URL, or lacks its package, or nothing is named.
    """
    import fsspec

    scheme, _, rest = url.partition("://")
    if not scheme or not rest:
        # fsspec takes it for a folder of this machine.
        msg = f"{url!r} names nothing. Expected a URL such as s3://bucket/folder; is a variable in it empty?"
        raise CheckpointNotFoundError(msg, path=url)
    try:
        fs, path = fsspec.core.url_to_fs(url)
    except (ValueError, TypeError, ImportError) as error:
        raise CheckpointNotFoundError(f"{url!r} cannot be opened: {error}", path=url) from error
    return fs, str(path).rstrip("/")
