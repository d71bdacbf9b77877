"""Folders behind URLs that fsspec knows, and how a folder is opened wherever it lies."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from fsdp_migrate.checkpoint_convert.storage.block_cache import BlockCache
from fsdp_migrate.checkpoint_convert.storage.errors import read_error, reading_from
from fsdp_migrate.checkpoint_convert.storage.folders import Folder, LocalFolder, Location, is_url, local_path
from fsdp_migrate.checkpoint_convert.storage.listing import kind_at, list_files
from fsdp_migrate.errors import CheckpointFormatError, CheckpointNotFoundError, CheckpointReadError


if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


# What the file systems of fsspec call the size, the version and the time of the last change.
_STAMP_FIELDS: Final = ("size", "ETag", "etag", "generation", "md5Hash", "LastModified", "mtime", "created")


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
        return FsspecFolder(url, is_there=True)
    path = local_path(location)
    try:
        if path.is_file():
            return LocalFolder(path.parent, only=path.name)
        return LocalFolder(path)
    except PermissionError as error:
        if isinstance(error, CheckpointReadError):
            raise
        raise read_error(f"{str(path)!r} could not be read: {error.strerror}.", path, error) from error


class FsspecFolder:
    """A folder behind an fsspec URL; ``is_there`` where that is known already."""

    def __init__(self, url: str, *, only: str | None = None, is_there: bool = False) -> None:
        self.url = url.rstrip("/")
        self.only = only
        self.fs, self.root = resolve_url(self.url)
        self._cache = BlockCache(self._fetch)
        # What the last list of everything said, until it was asked what tells the files from others.
        self._listed: Mapping[str, Mapping[str, Any]] | None = None
        if only is None and not is_there and _kind_at(self.url) != "directory":
            raise CheckpointFormatError(f"{self.url!r} is not a folder.", path=self.url)

    def files(self, max_depth: int | None = None) -> Mapping[str, int]:
        """Return every file below the folder with its size."""
        prefix = self.root.rstrip("/") + "/"
        with reading_from(self.url):
            if self.only is not None:
                return {self.only: int(self.fs.size(prefix + self.only))}
            found = list_files(self.fs, self.root, max_depth)
        if max_depth is None:
            self._listed = found
        return {name.removeprefix(prefix): int(info["size"]) for name, info in sorted(found.items())}

    def has(self, name: str) -> bool:
        """Tell whether there is a file of this name."""
        with reading_from(f"{self.url}/{name}"):
            return self.only in (None, name) and kind_at(self.fs, f"{self.root}/{name}") == "file"

    def stamps(self, names: Iterable[str]) -> Mapping[str, str]:
        """Return what the service tells of each file."""
        prefix = self.root.rstrip("/") + "/"
        wanted = set(names)
        found, self._listed = self._listed, None
        with reading_from(self.url):
            if found is None:
                self.fs.invalidate_cache()
                if self.only is None:
                    found = list_files(self.fs, self.root)
                else:
                    found = {prefix + self.only: self.fs.info(prefix + self.only)}
        return {
            short: ":".join(str(info[field]) for field in _STAMP_FIELDS if info.get(field) is not None)
            for name, info in found.items()
            if (short := name.removeprefix(prefix)) in wanted
        }

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
        if len(data) > stop - start:
            msg = (
                f"'{self.url}/{name}' was asked for {stop - start} bytes from byte {start} on, and "
                f"{len(data)} came. The service takes no ranges, or something between here and it does not. "
                "Copy the checkpoint to this machine first."
            )
            raise CheckpointReadError(msg, path=f"{self.url}/{name}")
        return data


def _kind_at(url: str) -> str:
    """Return what is at a URL, ``"file"`` or ``"directory"``."""
    fs, path = resolve_url(url)
    with reading_from(url):
        # What an earlier conversion of this process saw may be long ago.
        fs.invalidate_cache()
        return str(fs.info(path)["type"])


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
