"""Text files of people: a change as a diff, a copy of what was there, and replacing whole or not at all."""

from __future__ import annotations

import contextlib
import difflib
import itertools
import os
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple


BACKUP = ".fsdp1"
"""What is added to the name of a file that keeps what was there."""


class Backup(NamedTuple):
    """Where a file's text before is kept, and whether it was put there now."""

    path: Path
    is_new: bool


def unified_diff(before: str, after: str, name: str) -> str:
    """Return a change as a unified diff, as `git apply` takes it here; empty where nothing changes.

    Names are relative to the working directory. A file outside of it has its name from the root on, for
    `patch -p1 -d /`: git and patch take no name with ".." in it.
    """
    path = Path(os.path.relpath(name))
    if ".." in path.parts:
        path = Path(os.path.normpath(Path.cwd() / name))
        path = path.relative_to(path.anchor)
    name = path.as_posix()
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{name}", f"b/{name}"
    )
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )


def keep_backup(path: Path) -> Backup:
    """Copy a file to a name beside it: with ``.fsdp1`` added, and a number where another one is kept already.

    Raises:
        OSError: It cannot be written; nothing is left of it.
    """
    data = path.read_bytes()
    ends = (f".{number}" if number else "" for number in range(10_000))
    names = (path.with_name(f"{path.name}{BACKUP}{end}") for end in ends)
    backup = next(name for name in names if not name.exists() or name.read_bytes() == data)
    is_new = not backup.exists()
    if is_new:
        write_whole(backup, data, like=path)
    return Backup(backup, is_new)


def newest_backup(path: Path) -> Path | None:
    """Return the newest of the copies that :func:`keep_backup` put beside a file, or None."""
    ends = (f".{number}" if number else "" for number in range(10_000))
    names = (path.with_name(f"{path.name}{BACKUP}{end}") for end in ends)
    try:
        kept = list(itertools.takewhile(Path.is_file, names))
        return max(kept, key=lambda each: each.stat().st_mtime_ns, default=None)
    except OSError:
        return None


def write_whole(path: Path, data: bytes, *, like: Path | None) -> None:
    """Write a file whole or not at all; a link stays one, and a device or a pipe is written to.

    Args:
        path: The file.
        data: All of it.
        like: The file whose permissions it gets; None: those that any new file gets.

    Raises:
        OSError: It cannot be written; nothing is left of it.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as stream:
            stream.write(data)
        return
    path = path.resolve() if path.is_symlink() else path
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        if like is None:
            os.umask(mask := os.umask(0))
            Path(name).chmod(0o666 & ~mask)
        else:
            shutil.copymode(like, name)
        Path(name).replace(path)
    except BaseException:  # an interruption leaves nothing either
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise
