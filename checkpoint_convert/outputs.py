"""Outputs that appear whole or not at all.

Everything is written into ``<output>.partial-<random>`` beside the output, and flushed to the disk.
One rename
then puts it in place. Whatever ends the work before that, the partial folder is removed and the output is as
it was.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from fsdp_migrate.checkpoint_convert.metadata_reader import METADATA_FILE
from fsdp_migrate.checkpoint_convert.storage import (
    Folder,
    LocalFolder,
    Location,
    is_url,
    local_path,
)
from fsdp_migrate.errors import OutputError, OutputExistsError


if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Self


_FICLONE: Final = 0x40049409
_BUFFER: Final = 1 << 20


class OutputFile(Protocol):
    """A file that is being written, from its start to its end."""

    def write(self, data: bytes | memoryview, /) -> object:
        """Append bytes."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: object, error: object, trace: object, /) -> object:
        """Close the file; its bytes are on the disk then, unless there was an error."""
        ...


class Output(Protocol):
    """A folder that is being written."""

    url: str

    def create(self, name: str) -> OutputFile:
        """Open a new file for writing; closing it flushes it to the disk."""
        ...

    def share(self, folder: Folder, name: str, as_name: str) -> bool:
        """Let the output share the bytes of a file of the source; False where that cannot be."""
        ...

    def commit(self) -> None:
        """Put the output in its place."""
        ...

    def abort(self) -> None:
        """Remove everything that was written."""
        ...


def open_output(dst: Location, *, source: str, overwrite: bool) -> Output:
    """Start an output.

    Raises:
        OutputExistsError: It is there already, and may not be overwritten.
        OutputError: It cannot be there: it is the source, or one lies inside the other.
    """
    if is_url(dst):
        from fsdp_migrate.checkpoint_convert.remote_output import FsspecOutput

        return FsspecOutput(os.fspath(dst), source=source, overwrite=overwrite)
    return LocalOutput(local_path(dst), source=source, overwrite=overwrite)


@contextlib.contextmanager
def writing(path: object) -> Iterator[None]:
    """Turn what the operating system says into an :class:`OutputError`."""
    try:
        yield
    except OSError as error:
        if isinstance(error, OutputError | OutputExistsError):
            raise
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            msg = (
                f"The disk is full: {str(path)!r} could not be written. Nothing was left of the output, "
                "and the source is as it was. Free some space, or choose another disk."
            )
        else:
            reason = error.strerror or str(error)
            msg = (
                f"{str(path)!r} could not be written: {reason}. Nothing was left of the output, and the "
                "source is as it was."
            )
        output_error = OutputError(msg, path=path)
        output_error.errno = error.errno
        raise output_error from error


class LocalOutput:
    """An output on this machine."""

    def __init__(self, path: Path, *, source: str, overwrite: bool) -> None:
        self.path = path.absolute()
        self.url = str(path)
        if not is_url(source):
            _check_apart(self.path, Path(source))
        _check_free(self.path, overwrite=overwrite)
        self._overwrite = overwrite
        self._mark = uuid.uuid4().hex[:12]
        self._staging = self.path.with_name(f"{self.path.name}.partial-{self._mark}")
        self._made: list[Path] = []
        try:
            with writing(path):
                self._make_parents()
                self._staging.mkdir()
        except BaseException:
            self.abort()
            raise

    def create(self, name: str) -> OutputFile:
        """Open a new file for writing."""
        target = self._staging / name
        with writing(self.path / name):
            target.parent.mkdir(parents=True, exist_ok=True)
            return _DurableFile(target, self.path / name)

    def share(self, folder: Folder, name: str, as_name: str) -> bool:
        """Let the output share the bytes of a file of the source, as a clone or a hard link."""
        if not isinstance(folder, LocalFolder):
            return False
        new = self._staging / as_name
        with writing(self.path / as_name):
            new.parent.mkdir(parents=True, exist_ok=True)
        return _clone_or_link(folder.path / name, new)

    def commit(self) -> None:
        """Put the output in its place."""
        with writing(self.path):
            for base, _, _ in os.walk(self._staging):
                _sync_folder(Path(base))
            if self._overwrite and os.path.lexists(self.path):
                self._replace()
            else:
                self._appear()
        with contextlib.suppress(OSError):
            _sync_folder(self.path.parent)

    def abort(self) -> None:
        """Remove everything that was written."""
        shutil.rmtree(self._staging, ignore_errors=True)
        for parent in reversed(self._made):
            with contextlib.suppress(OSError):
                parent.rmdir()

    def _make_parents(self) -> None:
        for parent in reversed(self.path.parents):
            if not parent.exists():
                parent.mkdir()
                self._made.append(parent)

    def _appear(self) -> None:
        try:
            self._staging.rename(self.path)
        except OSError as error:
            # Somebody else was faster.
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise already_there(self.url) from error
            raise

    def _replace(self) -> None:
        old = self.path.with_name(f"{self.path.name}.old-{self._mark}")
        try:
            self.path.rename(old)
            self._staging.rename(self.path)
        except BaseException:
            if os.path.lexists(old) and not os.path.lexists(self.path):
                old.rename(self.path)
            raise
        if old.is_symlink():
            old.unlink()
        else:
            shutil.rmtree(old, ignore_errors=True)


class _DurableFile:
    """A file whose bytes are on the disk once it is closed without an error."""

    def __init__(self, path: Path, shown: Path) -> None:
        self._shown = shown
        self._file = path.open("xb", buffering=_BUFFER)

    def write(self, data: bytes | memoryview, /) -> int:
        """Append bytes."""
        with writing(self._shown):
            return self._file.write(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object, /) -> None:
        if kind is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            return
        with writing(self._shown), self._file:
            self._file.flush()
            os.fsync(self._file.fileno())


def _check_apart(path: Path, source: Path) -> None:
    out, src = path.resolve(), source.resolve()
    if out == src:
        raise OutputError(f"The output {str(path)!r} is the source itself.", path=path)
    if src in out.parents:
        msg = f"The output {str(path)!r} lies inside the source {str(source)!r}, which is never changed."
        raise OutputError(msg, path=path)
    if out in src.parents:
        msg = f"The source {str(source)!r} lies inside the output {str(path)!r}, which would replace it."
        raise OutputError(msg, path=path)


def _check_free(path: Path, *, overwrite: bool) -> None:
    if not os.path.lexists(path):
        return
    if not overwrite:
        raise already_there(str(path))
    is_checkpoint = (path / METADATA_FILE).is_file() or (path.is_dir() and not any(path.iterdir()))
    if not is_checkpoint:
        msg = (
            f"{str(path)!r} is there already, and is no checkpoint: it has no `.metadata`. It is not "
            "overwritten, because something else would be deleted. Choose another output, or remove it "
            "yourself."
        )
        raise OutputExistsError(msg, path=path)


def already_there(url: str) -> OutputExistsError:
    """Return the error for an output that may not be overwritten."""
    msg = f"{url!r} is there already. Choose another output, or ask for it to be overwritten."
    return OutputExistsError(msg, path=url)


def _clone_or_link(old: Path, new: Path) -> bool:
    """Share the bytes of a file, as a copy-on-write clone or a hard link; False where neither is possible."""
    real = old.resolve()
    with contextlib.suppress(OSError), real.open("rb") as source, new.open("xb") as target:
        fcntl.ioctl(target.fileno(), _FICLONE, source.fileno())
        os.fsync(target.fileno())
        return True
    new.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        os.link(real, new)
        return True
    return False


def _sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError as error:
        # Some network file systems cannot flush folders, and need not.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(fd)
