"""Outputs behind fsspec URLs, where folders cannot be renamed: ``.metadata`` comes last."""

from __future__ import annotations

import contextlib
import uuid
from typing import TYPE_CHECKING

from fsdp_migrate.checkpoint_convert.journal import NOTHING, Written
from fsdp_migrate.checkpoint_convert.metadata_reader import METADATA_FILE
from fsdp_migrate.checkpoint_convert.outputs import already_there, writing
from fsdp_migrate.checkpoint_convert.storage import is_url, resolve_url
from fsdp_migrate.errors import OutputError, UnsupportedFeatureError


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.checkpoint_convert.outputs import OutputFile
    from fsdp_migrate.checkpoint_convert.storage import Folder


class FsspecOutput:
    """An output behind an fsspec URL. There is no rename of folders there; ``.metadata`` is moved last."""

    def __init__(self, url: str, *, source: str, overwrite: bool, resume: bool = False) -> None:
        if resume:
            msg = (
                f"{url!r} cannot be gone on with: `resume` works for outputs on this machine's file systems "
                "only. Start anew; nothing that an interrupted conversion left there has a `.metadata`."
            )
            raise UnsupportedFeatureError(msg, feature="resume behind URLs")
        self.url = self.checkpoint_id = url.rstrip("/")
        self._fs, self._root = resolve_url(self.url)
        if is_url(source):
            _check_urls_apart(self.url, source.rstrip("/"))
        self._existed = bool(self._fs.exists(self._root))
        if self._existed and not overwrite:
            raise already_there(self.url)
        self._mark = uuid.uuid4().hex[:12]
        self._staging = f"{self._root}.partial-{self._mark}"
        self._names: list[str] = []

    def begin(self, identity: str) -> bool:
        """Start anew."""
        del identity
        return False

    def written(self, name: str) -> Written:
        """Return how far an earlier process came with a file."""
        del name
        return NOTHING

    def record(self, name: str, written: Written) -> None:
        """Note nothing."""

    def kept(self, name: str, nbytes: int) -> Iterator[bytes]:
        """Yield nothing."""
        del name, nbytes
        return iter(())

    def create(self, name: str, keep: int = 0) -> OutputFile:
        """Open a new file for writing."""
        with writing(f"{self.url}/{name}"):
            self._fs.makedirs(f"{self._staging}/{name}".rpartition("/")[0], exist_ok=True)
            self._names.append(name)
            file: OutputFile = self._fs.open(f"{self._staging}/{name}", "wb")
            return file

    def share(self, folder: Folder, name: str, as_name: str) -> bool:
        """Say that bytes cannot be shared here."""
        del folder, name, as_name
        return False

    def commit(self) -> None:
        """Put the output in its place; an old one is kept until the new one is whole."""
        old = f"{self._root}.old-{self._mark}"
        with writing(self.url):
            try:
                if self._existed:
                    self._fs.mv(self._root, old, recursive=True)
                self._move_files()
            except BaseException:
                self._remove(self._root)
                if self._existed and self._fs.exists(old):
                    self._fs.mv(old, self._root, recursive=True)
                raise
        self._remove(old)
        self.abort()

    def abort(self, *, keep: bool = False) -> None:
        """Remove everything that was written."""
        del keep
        self._remove(self._staging)

    def _move_files(self) -> None:
        self._fs.makedirs(self._root, exist_ok=True)
        for name in sorted(self._names, key=lambda name: name == METADATA_FILE):
            self._fs.makedirs(f"{self._root}/{name}".rpartition("/")[0], exist_ok=True)
            self._fs.mv(f"{self._staging}/{name}", f"{self._root}/{name}")

    def _remove(self, path: str) -> None:
        with contextlib.suppress(OSError):
            if self._fs.exists(path):
                self._fs.rm(path, recursive=True)


def _check_urls_apart(url: str, source: str) -> None:
    if f"{url}/".startswith(f"{source}/") or f"{source}/".startswith(f"{url}/"):
        raise OutputError(f"The output {url!r} and the source {source!r} lie in each other.", path=url)
