"""Outputs on this machine, which appear whole or not at all.

Everything is written into a :class:`WorkFolder` beside the output, and flushed to the disk. One rename then
puts it in place. Whatever ends the work before that, the output is as it was. The work folder is removed
then; if the process was killed, it stays, and another process can go on with what its journal says is done.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import stat
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fsdp_migrate.checkpoint_convert.formats.checksums import CHECKSUMS_FILE
from fsdp_migrate.checkpoint_convert.formats.file_names import METADATA_FILE
from fsdp_migrate.checkpoint_convert.outputs.durable_file import create_file
from fsdp_migrate.checkpoint_convert.outputs.journal import NOTHING, Journal, Written
from fsdp_migrate.checkpoint_convert.outputs.kept_files import (
    is_model_folder,
    take_over_others,
    unknown_files,
)
from fsdp_migrate.checkpoint_convert.outputs.output import (
    OutputFile,
    already_there,
    read_first,
    writing,
)
from fsdp_migrate.checkpoint_convert.outputs.work_folder import WorkFolder
from fsdp_migrate.checkpoint_convert.storage.folders import (
    Folder,
    LocalFolder,
    Location,
    is_url,
)
from fsdp_migrate.checkpoint_convert.storage.model_files import FULL_MODEL
from fsdp_migrate.errors import OutputError, OutputExistsError
from fsdp_migrate.findings import named


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


# Linux's `ioctl(FICLONE)`; Python's fcntl has a name for it from 3.12 on only.
_FICLONE: Final = 0x40049409
_MOST_NAMED: Final = 3
_SAFETENSORS: Final = (".safetensors", ".safetensors.index.json")
# RENAME_EXCHANGE and AT_FDCWD of renameat2(2), for which Python has neither a function nor names.
_EXCHANGE: Final = 2
_AT_FDCWD: Final = -100
# What says that the kernel, or the file system, knows no exchange; any other error is one.
_NO_EXCHANGE: Final = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP})


class LocalOutput:
    """An output on this machine."""

    takes_parts = True
    reads_back = True

    def __init__(
        self,
        path: Path,
        *,
        source: str,
        overwrite: bool,
        resume: bool = False,
        keeps_others: bool = False,
    ) -> None:
        self.path = path.absolute()
        self.kept_others: Sequence[str] = ()
        self._keeps_others = keeps_others
        self._names: set[str] = set()
        self.url = str(path)
        self.checkpoint_id = str(self.path)
        if not is_url(source):
            _check_apart(self.path, Path(source))
        self._overwrite = overwrite
        self._work = WorkFolder(self.path)
        self._journal = Journal(self._work.journal(0))
        self._earlier: dict[tuple[str, int | None], Written] = {}
        self._made: list[Path] = []
        # What an earlier process left is only this one's to remove once it is clear that it goes on with it.
        self._is_left = False
        # With `resume` it may be what this very conversion made, which only its bytes tell.
        is_there = resume and not overwrite and self.path.is_dir()
        self.stands: Location | None = self.path if is_there else None
        if not overwrite and not resume:
            _check_free(self.path, overwrite=False)
        try:
            with writing(path):
                self._make_parents()
                self._take_over(self._work.acquire(), resume=resume)
        except BaseException:
            self.abort()
            raise

    def begin(self, identity: str) -> bool:
        """Say which conversion it is; return whether an earlier process has put the output in place."""
        with writing(self.path):
            if self._journal.identity not in (None, identity):
                msg = (
                    f"{str(self._work.path)!r} was left by a conversion of another source, or with other "
                    "options, or the source has changed since. It cannot be continued. Give the same "
                    "options again, or start again with `overwrite` (--overwrite) and without `resume` "
                    "(--resume)."
                )
                raise OutputError(msg, path=self._work.path)
            # Without a journal nothing says of which conversion the files are.
            if self._journal.identity is None:
                self._work.clear()
            if self._is_in_place():
                return True
            if self.stands is not None:
                raise already_there(self.url)
            # Asked again: inspecting and planning took time, and somebody may have made it meanwhile.
            _check_free(self.path, overwrite=self._overwrite, keeps_others=self._keeps_others)
            self._is_left = False
            self._journal.begin(identity)
            self._work.content.mkdir(exist_ok=True)
            _sync_folder(self._work.path)
        return False

    def prepare(self, names: Iterable[str]) -> None:
        """Remove what an earlier process left that may not be written to: links to the source."""
        for name in names:
            self._names.add(name)
            target = self._work.content / name
            with writing(self.path / name), contextlib.suppress(FileNotFoundError, NotADirectoryError):
                status = target.lstat()
                if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
                    target.unlink()

    def state(self) -> Mapping[str, Any]:
        """Return how far an earlier process came."""
        found = [(name, part, self.written(name, part)) for name, part in self._earlier]
        return {"earlier": [[name, part, asdict(w)] for name, part, w in found if w != NOTHING]}

    def written(self, name: str, part: int | None = None) -> Written:
        """Return how far an earlier process came with a file, if the file is still like that."""
        found = self._earlier.get((name, part), NOTHING)
        try:
            status = (self._work.content / name).lstat()
        except OSError:
            return NOTHING
        # A file of two names may be the source's own.
        is_own = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
        end = (part or 0) + found.nbytes
        # A part says nothing of the file's length: other parts, perhaps written by others, lie behind it.
        is_whole = status.st_size == end if found.is_done and part is None else status.st_size >= end
        return found if is_own and is_whole else NOTHING

    def create(self, name: str, keep: int = 0, part: int | None = None, size: int = 0) -> OutputFile:
        """Open a file for writing, after its first ``keep`` bytes, or from ``part`` on."""
        self._names.add(name)
        return create_file(self._work.content / name, self.path / name, keep, part, size)

    def record(self, name: str, written: Written, part: int | None = None) -> None:
        """Note how far a file is in the journal."""
        with writing(self.path):
            self._journal.record(name, written, part)

    def kept(self, name: str, nbytes: int) -> Iterator[bytes]:
        """Yield the first bytes of a file that an earlier process wrote."""
        return read_first(self._work.content / name, nbytes)

    def share(self, folder: Folder, name: str, as_name: str) -> bool:
        """Let the output share the bytes of a file of the source, as a clone or a hard link."""
        if not isinstance(folder, LocalFolder):
            return False
        new = self._work.content / as_name
        with writing(self.path / as_name):
            new.parent.mkdir(parents=True, exist_ok=True)
            new.unlink(missing_ok=True)
            return _clone_or_link(folder.path / name, new)

    def commit(self) -> None:
        """Put the output in its place."""
        if self._is_in_place():
            self._finish()
            return
        with writing(self.path):
            if self._keeps_others and self._overwrite and is_model_folder(self.path):
                self.kept_others = take_over_others(self.path, self._work.content, self._names)
            # Flushed before the rename: after a power cut the name may be on the disk, and the files not.
            for base, _, _ in os.walk(self._work.content):
                _sync_folder(Path(base))
            # And noted before it: who is killed right after the rename has only to clean up, and a later
            # process knows the folder by its number, wherever it is.
            status = self._work.content.lstat()
            self._journal.record_place((status.st_dev, status.st_ino))
            if self._overwrite and os.path.lexists(self.path):
                self._replace()
            else:
                self._appear()
        with contextlib.suppress(OSError):
            # The output stands by now, and an error would say that it does not.
            _sync_folder(self.path.parent)
        self._finish()

    def abort(self, *, keep: bool = False) -> None:
        """Give up: remove everything that was written, or keep it."""
        if keep or self._is_left:
            self._journal.close()
            self._work.release()
        else:
            self._finish()
        # Only those that this process made, and only empty ones: rmdir refuses the rest.
        for parent in reversed(self._made):
            with contextlib.suppress(OSError):
                parent.rmdir()

    def _finish(self) -> None:
        self._journal.close()
        self._work.remove()

    def _take_over(self, is_left: bool, *, resume: bool) -> None:
        """Decide what becomes of what an earlier process left."""
        self._is_left = is_left
        # First: a process that was killed between two renames has left nothing at the output's place.
        self._work.recover()
        self._journal.read()
        if self._is_in_place() and not resume:
            # It had only to clean up. What is there now counts like any other output.
            self._journal = Journal(self._journal.path)
            self._is_left = is_left = False
            self._work.clear()
        if is_left and self.stands:
            self.stands = None
        if self.stands is None and not (resume and self._is_in_place()):
            _check_free(self.path, overwrite=self._overwrite, keeps_others=self._keeps_others)
        if is_left and not resume:
            if not self._overwrite:
                raise _left_behind(self.url, self._work.path)
            self._journal = Journal(self._journal.path)
            self._work.clear()
            self._is_left = False
        # Those of ranks, too: each noted what it wrote in a journal of its own.
        for path in self._work.journals():
            journal = Journal(path)
            journal.read()
            if journal.identity == self._journal.identity:
                self._earlier.update(journal.files)

    def _is_in_place(self) -> bool:
        return self._journal.place is not None and self._journal.place == _place(self.path)

    def _make_parents(self) -> None:
        for parent in reversed(self.path.parents):
            if not parent.exists():
                parent.mkdir()
                self._made.append(parent)

    def _appear(self) -> None:
        try:
            # rename(2) puts a folder in the place of an empty one, and refuses any other.
            self._work.content.rename(self.path)
        except OSError as error:
            # Somebody else was faster.
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise already_there(self.url) from error
            raise

    def _replace(self) -> None:
        """Put the output where another one is. Where the system can, there is one at every moment."""
        if _exchange(self._work.content, self.path):
            return
        try:
            self.path.rename(self._work.replaced)
            self._work.content.rename(self.path)
        # Also an interrupt between the two renames: the old output goes back.
        except BaseException:
            self._work.recover()
            raise


def check_place(path: Path, source: str, *, overwrite: bool, resume: bool, keeps_others: bool) -> None:
    """Check that an output may be made in a place, as making it would, and make nothing.

    Args:
        path: The place.
        source: The source, which it may not touch.
        overwrite: Whether an output there is replaced.
        resume: Whether one that is there may be what this conversion made.
        keeps_others: Whether of a model's folder the weights alone are replaced.

    Raises:
        OutputExistsError: Something is there that may not be replaced.
        OutputError: It is the source, or one lies inside the other.
    """
    if not is_url(source):
        _check_apart(path, Path(source))
    if overwrite or not resume:
        _check_free(path, overwrite=overwrite, keeps_others=keeps_others)


def _check_apart(path: Path, source: Path) -> None:
    try:
        # Path.resolve() raises a RuntimeError where links lead in a circle.
        out, src = (Path(os.path.realpath(each)) for each in (path, source))
    except ValueError as error:
        msg = f"{str(path)!r} cannot be the name of a folder: {error}. Choose another output."
        raise OutputError(msg, path=path) from error
    if out == src:
        raise OutputError(f"The output {str(path)!r} is the source itself.", path=path)
    if src in out.parents:
        msg = f"The output {str(path)!r} lies inside the source {str(source)!r}, which is never changed."
        raise OutputError(msg, path=path)
    if out in src.parents:
        msg = f"The source {str(source)!r} lies inside the output {str(path)!r}, which would replace it."
        raise OutputError(msg, path=path)


def _check_free(path: Path, *, overwrite: bool, keeps_others: bool = False) -> None:
    if not os.path.lexists(path):
        return
    if not overwrite:
        raise already_there(str(path))
    if not _is_checkpoint(path) and not (keeps_others and is_model_folder(path)):
        msg = (
            f"{str(path)!r} is there already, and is no checkpoint: it has no `.metadata`{_others(path)}. It "
            "is not overwritten, because something else would be deleted. Choose another output, or remove "
            "it yourself."
        )
        raise OutputExistsError(msg, path=path)


def _others(path: Path) -> str:
    """Name what no conversion has written, which is why the folder stays."""
    found = unknown_files(path) if path.is_dir() else []
    return f", and holds {named(found, _MOST_NAMED)}" if found else ""


def _is_checkpoint(path: Path) -> bool:
    """Tell whether a folder is what a conversion may have written, whatever the target, or is empty."""
    if not path.is_dir():
        return False
    names = [entry.name for entry in path.iterdir()]
    folders = [path, *(entry for entry in path.iterdir() if entry.is_dir())]
    if FULL_MODEL in names or any((folder / METADATA_FILE).is_file() for folder in folders):
        return True
    return all(name.endswith(_SAFETENSORS) or name == CHECKSUMS_FILE for name in names)


def _left_behind(url: str, work: Path) -> OutputExistsError:
    msg = (
        f"A conversion into {url!r} was interrupted, and left {str(work)!r}. Continue it with `resume` "
        "(--resume), or start again with `overwrite` (--overwrite), which removes it."
    )
    return OutputExistsError(msg, path=work)


def _place(path: Path) -> tuple[int, int] | None:
    """Return what a folder is known by wherever it is moved: its device and number."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two folders at once; False where the system cannot do that."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    if renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _NO_EXCHANGE:
        return False
    raise OSError(number, os.strerror(number), str(one))


def _clone_or_link(old: Path, new: Path) -> bool:
    """Share the bytes of a file, as a copy-on-write clone or a hard link; False where neither is possible."""
    # link(2) of Linux links a symbolic link itself, and a snapshot in the hub's cache consists of those.
    real = old.resolve()
    # A clone first: what is written into it later does not reach the source, and into a hard link it would.
    with contextlib.suppress(OSError), real.open("rb") as source, new.open("xb") as target:
        fcntl.ioctl(target.fileno(), _FICLONE, source.fileno())
        os.fsync(target.fileno())
        return True
    # Where cloning failed, the empty file that was made for it is in the way of the link.
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
