"""The folder beside an output in which it is made: who works in it, and what an earlier process left there.

OUT.partial-conversion/
lock        held by the process at work; the system lets go of it whenever that process ends
journal-0   what has been done, one per rank
output/     what becomes OUT, by one rename
replaced    the old OUT, for a moment, where two folders cannot be exchanged at once
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from typing import TYPE_CHECKING, Final

from fsdp_migrate.errors import OutputError, OutputExistsError


if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


SUFFIX: Final = ".partial-conversion"
_LOCK: Final = "lock"
_CONTENT: Final = "output"
_REPLACED: Final = "replaced"
_JOURNAL: Final = "journal-"
_TRIES: Final = 100
_NO_LOCKS: Final = frozenset({errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK, errno.EINVAL})


class WorkFolder:
    """The work folder of one output.

    Args:
        output: The output.
    """

    def __init__(self, output: Path) -> None:
        self.output = output
        self.path = output.with_name(output.name + SUFFIX)
        self.content = self.path / _CONTENT
        self.replaced = self.path / _REPLACED
        self._lock: _Lock | None = None

    def acquire(self) -> bool:
        """Make the folder and lock it; return whether an earlier conversion left something in it.

        Raises:
            OutputError: Another process is at work in it.
            OutputExistsError: It is no work folder of this package.
        """
        for _ in range(_TRIES):
            is_made = False
            with contextlib.suppress(FileExistsError):
                self.path.mkdir()
                is_made = True
            # Before the lock is made in it: a user's own folder may have this name.
            self._check_own()
            lock = _Lock()
            try:
                if not lock.open(self.path / _LOCK):  # its owner has just removed it
                    continue
                self._take_lock(lock.fd)
                # An owner removes the lock file while it holds it: what was opened before is then a lock on a
                # file that nobody else will open.
                if _is_at(lock.fd, self.path / _LOCK):
                    self._lock = lock
                    return any(name != _LOCK for name in os.listdir(self.path))  # noqa: PTH208
            except BaseException:
                self._give_back(lock, is_made=is_made)
                raise
            lock.close()
        msg = f"{str(self.path)!r} appears and disappears. Is another conversion writing there?"
        raise OutputError(msg, path=self.path)

    def journal(self, rank: int) -> Path:
        """Return where a rank keeps its journal."""
        return self.path / f"{_JOURNAL}{rank}"

    def journals(self) -> Iterator[Path]:
        """Yield the journals that are there."""
        yield from sorted(self.path.glob(f"{_JOURNAL}*"))

    def recover(self) -> None:
        """Put an output back that was to be replaced, if the process ended before the new one was there."""
        if os.path.lexists(self.replaced) and not os.path.lexists(self.output):
            self.replaced.rename(self.output)

    def clear(self) -> None:
        """Remove what an earlier conversion left."""
        # First: `replaced` may hold the only copy of the old output.
        self.recover()
        for path in self.path.iterdir():
            if path.name != _LOCK:
                _remove(path)

    def release(self) -> None:
        """Let go of the folder and leave it as it is, but for a lock on nothing."""
        try:
            if set(os.listdir(self.path)) <= {_LOCK}:  # noqa: PTH208
                self.remove()
        finally:
            self._close()

    def remove(self) -> None:
        """Remove the folder, its lock last, and let go of it. Failing to is no error: the output stands."""
        if self._lock is not None:
            with contextlib.suppress(OSError):
                self.clear()
                (self.path / _LOCK).unlink()
                self.path.rmdir()
        self._close()

    def _give_back(self, lock: _Lock, *, is_made: bool) -> None:
        """Let go of the folder, and remove it if nobody was there before."""
        if is_made:
            with contextlib.suppress(OSError):
                # Without the lock it is nobody's; who is about to lock it makes its own.
                if self._lock is lock:
                    (self.path / _LOCK).unlink()
                self.path.rmdir()
        self._lock = None
        lock.close()

    def _close(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.close()

    def _check_own(self) -> None:
        """Check that nothing is in the folder that this package does not put there."""
        try:
            # A link is never ours: `clear` would remove what lies behind it.
            names = set() if self.path.is_symlink() else set(os.listdir(self.path))  # noqa: PTH208
            known = (_LOCK, _CONTENT, _REPLACED)
            is_own = all(n in known or n.startswith(_JOURNAL) for n in names) and not self.path.is_symlink()
        except FileNotFoundError:
            return
        except NotADirectoryError:
            is_own = False
        if not is_own:
            msg = (
                f"{str(self.path)!r} is where the output would be made, and something else is there. Move "
                "it away, or choose another output."
            )
            raise OutputExistsError(msg, path=self.path)

    def _take_lock(self, fd: int) -> None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            msg = (
                f"Another conversion is writing {str(self.output)!r} at the moment: it works in "
                f"{str(self.path)!r}. Wait for it, or choose another output."
            )
            raise OutputError(msg, path=self.output) from error
        except OSError as error:
            # Some cluster file systems are mounted without locks.
            if error.errno not in _NO_LOCKS:
                raise


class _Lock:
    """An open file that can be locked. It is let go of once nobody refers to it, whatever interrupts us."""

    def __init__(self) -> None:
        self.fd = -1

    def open(self, path: Path) -> bool:
        """Open it, or make it; False where its folder is gone."""
        try:
            self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:
            return False
        return True

    def close(self) -> None:
        """Close it, once. It is closed, whatever the system says about it: nothing was written."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)

    def __del__(self) -> None:
        self.close()


def _is_at(fd: int, path: Path) -> bool:
    """Tell whether an open file is still the one at a path."""
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except FileNotFoundError:
        return False


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
