"""Outputs behind fsspec URLs, where folders cannot be renamed and nothing can be linked.

Object stores show an object once it is whole. So a new output is written where it is to be, and ``.metadata``
comes last: without it nothing is a checkpoint. Until then ``.conversion-in-progress`` says who is at work. An
output that is replaced is kept beside the new one until that is whole.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import uuid
from typing import TYPE_CHECKING, Any, Final

from fsdp_migrate.checkpoint_convert.journal import NOTHING, Written
from fsdp_migrate.checkpoint_convert.metadata_reader import METADATA_FILE
from fsdp_migrate.checkpoint_convert.outputs import already_there
from fsdp_migrate.checkpoint_convert.storage import is_url, resolve_url, writing_to
from fsdp_migrate.errors import OutputError, OutputExistsError, UnsupportedFeatureError


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from typing_extensions import Self

    from fsdp_migrate.checkpoint_convert.output_files import OutputFile
    from fsdp_migrate.checkpoint_convert.storage import Folder


BUSY_FILE: Final = ".conversion-in-progress"
# S3 takes 10,000 parts; each thread holds about two in memory.
_PART_BYTES: Final = 8 << 20
_MAX_PARTS: Final = 9000
_WITHOUT_FOLDERS: Final = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oss", "oci"})


class _Writer:
    """What every rank does: whole files, written where rank 0 says."""

    takes_parts = False

    def __init__(self, url: str) -> None:
        self.url = self.checkpoint_id = url.rstrip("/")
        self._fs, self._root = resolve_url(self.url)
        self._target = self._root

    def begin(self, identity: str) -> bool:
        """Start anew."""
        del identity
        return False

    def prepare(self, names: Iterable[str]) -> None:
        """Make the folders, where the service has any."""
        folders = {f"{self._target}/{name}".rpartition("/")[0] for name in names}
        with writing_to(self.url):
            for folder in sorted(folders):
                self._make_folder(folder)

    def _make_folder(self, path: str) -> None:
        """Make a folder, but no bucket: one that is not there is somebody's slip."""
        protocols = self._fs.protocol
        if _WITHOUT_FOLDERS.isdisjoint([protocols] if isinstance(protocols, str) else protocols):
            self._fs.makedirs(path, exist_ok=True)

    def state(self) -> Mapping[str, Any]:
        """Return where files are written."""
        return {"target": self._target}

    def written(self, name: str, part: int | None = None) -> Written:
        """Return how far an earlier process came with a file."""
        del name, part
        return NOTHING

    def record(self, name: str, written: Written, part: int | None = None) -> None:
        """Note nothing."""

    def kept(self, name: str, nbytes: int) -> Iterator[bytes]:
        """Yield nothing."""
        del name, nbytes
        return iter(())

    def create(self, name: str, keep: int = 0, part: int | None = None, size: int = 0) -> OutputFile:
        """Open a new file for writing; it is there once it is closed."""
        if keep or part is not None:
            raise AssertionError("Files behind URLs are written in one go.")
        part_bytes = max(_PART_BYTES, -(-size // _MAX_PARTS))
        path = f"{self._target}/{name}"
        with writing_to(f"{self.url}/{name}"):
            return _RemoteFile(self._fs.open(path, "wb", block_size=part_bytes), f"{self.url}/{name}")

    def share(self, folder: Folder, name: str, as_name: str) -> bool:
        """Say that bytes cannot be shared here."""
        del folder, name, as_name
        return False

    def commit(self) -> None:
        """Leave that to rank 0."""

    def abort(self, *, keep: bool = False) -> None:
        """Leave what is there to the next conversion; only rank 0 knows what else was there."""


class JoinedFsspecOutput(_Writer):
    """What ranks other than 0 write of an output behind a URL."""

    def __init__(self, url: str, state: Mapping[str, Any]) -> None:
        super().__init__(url)
        self._target = state["target"]


class FsspecOutput(_Writer):
    """An output behind an fsspec URL."""

    def __init__(self, url: str, *, source: str, overwrite: bool, resume: bool = False) -> None:
        if resume:
            msg = (
                f"{url!r} cannot be gone on with: `resume` works for outputs on this machine's file systems "
                "only. Start anew; nothing that an interrupted conversion left there has a `.metadata`."
            )
            raise UnsupportedFeatureError(msg, feature="resume behind URLs")
        super().__init__(url)
        if is_url(source):
            _check_urls_apart(self.url, source.rstrip("/"))
        self._mark = uuid.uuid4().hex[:12]
        self._names: set[str] = set()
        self._is_begun = False
        with writing_to(self.url):
            self._replaces = self._look(overwrite=overwrite)
        if self._replaces:
            self._target = f"{self._root}.partial-{self._mark}"

    def begin(self, identity: str) -> bool:
        """Say who is at work; of two that begin at once, one does not."""
        del identity
        if self._replaces:
            return False
        about = {"host": socket.gethostname(), "pid": os.getpid(), "conversion": self._mark}
        path = f"{self._root}/{BUSY_FILE}"
        with writing_to(self.url):
            self._make_folder(self._root)
            try:
                self._create_alone(path, json.dumps(about).encode())
            except FileExistsError as error:
                raise _at_work(self.url) from error
        self._is_begun = True
        return False

    def prepare(self, names: Iterable[str]) -> None:
        """Make the folders, where the service has any, and note what will be written."""
        self._names.update(names)
        super().prepare(self._names)

    def create(self, name: str, keep: int = 0, part: int | None = None, size: int = 0) -> OutputFile:
        """Open a new file for writing; it is there once it is closed."""
        if name not in self._names:
            self.prepare([name])
        return super().create(name, keep, part, size)

    def commit(self) -> None:
        """Finish; where an old output is replaced, it is kept until the new one is whole."""
        if not self._replaces:
            with contextlib.suppress(OSError):
                self._fs.rm_file(f"{self._root}/{BUSY_FILE}")
            return
        old = f"{self._root}.old-{self._mark}"
        with writing_to(self.url):
            self._keep_old(old)
            try:
                self._remove(self._root)
                self._move_files()
            except BaseException:
                self._remove(self._root)
                self._fs.copy(old, self._root, recursive=True)
                self._remove(old)
                raise
        self._remove(old)
        self._remove(self._target)

    def abort(self, *, keep: bool = False) -> None:
        """Remove everything that was written."""
        del keep
        if self._replaces or self._is_begun:
            self._remove(self._target)

    def _look(self, *, overwrite: bool) -> bool:
        """Look at what is there; return whether it is a checkpoint that is to be replaced."""
        self._fs.invalidate_cache()
        if not self._fs.exists(self._root):
            return False
        names = [path.rpartition("/")[2] for path in self._fs.find(self._root, maxdepth=2)]
        is_left = BUSY_FILE in names
        is_checkpoint = not is_left and any(
            name == METADATA_FILE or name.endswith(".safetensors") for name in names
        )
        if not overwrite:
            raise _at_work(self.url) if is_left else already_there(self.url)
        if is_checkpoint:
            return True
        if not is_left:
            msg = (
                f"{self.url!r} is there already, and is no checkpoint: it holds no `.metadata` and no "
                "safetensors. It is not overwritten, because something else would be deleted. Choose another "
                "output, or remove it yourself."
            )
            raise OutputExistsError(msg, path=self.url)
        self._fs.rm(self._root, recursive=True)
        return False

    def _keep_old(self, old: str) -> None:
        """Copy what is replaced; only a whole copy is worth more than what is there."""
        self._fs.invalidate_cache()
        try:
            self._fs.copy(self._root, old, recursive=True)
        except BaseException:
            self._remove(old)
            raise

    def _create_alone(self, path: str, data: bytes) -> None:
        """Create a file that must not be there yet."""
        try:
            self._fs.pipe_file(path, data, mode="create")
        except (TypeError, NotImplementedError):  # an fsspec, or a service, without that
            if self._fs.exists(path):
                raise FileExistsError(path) from None
            self._fs.pipe_file(path, data)

    def _move_files(self) -> None:
        self._fs.invalidate_cache()
        for name in sorted(self._names, key=lambda name: name.endswith((METADATA_FILE, ".index.json"))):
            self._make_folder(f"{self._root}/{name}".rpartition("/")[0])
            self._fs.mv(f"{self._target}/{name}", f"{self._root}/{name}")

    def _remove(self, path: str) -> None:
        with contextlib.suppress(OSError):
            self._fs.invalidate_cache()
            if self._fs.exists(path):
                self._fs.rm(path, recursive=True)


class _RemoteFile:
    """A file behind a URL that appears when it is closed, and does not where there was an error."""

    def __init__(self, file: Any, url: str) -> None:
        self._file = file
        self._url = url

    def write(self, data: bytes | memoryview, /) -> object:
        """Append bytes."""
        with writing_to(self._url):
            return self._file.write(data)

    def sync(self) -> bool:
        """Say that a part of a file cannot be brought to the disk here."""
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
            self._file.closed = True


def _at_work(url: str) -> OutputError:
    msg = (
        f"Another conversion is writing {url!r} at the moment, or was killed while it did: "
        f"`{BUSY_FILE}` is there. If none is at work, start anew with `overwrite` (--overwrite)."
    )
    return OutputError(msg, path=url)


def _check_urls_apart(url: str, source: str) -> None:
    if f"{url}/".startswith(f"{source}/") or f"{source}/".startswith(f"{url}/"):
        raise OutputError(f"The output {url!r} and the source {source!r} lie in each other.", path=url)
