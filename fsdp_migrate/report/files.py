"""Where reports go: whole or not at all, and in the place of nothing but another report."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from fsdp_migrate.errors import OutputError, OutputExistsError
from fsdp_migrate.report.html import GENERATOR
from fsdp_migrate.report.markdown import FIRST_LINE
from fsdp_migrate.text_files import write_whole


if TYPE_CHECKING:
    from pathlib import Path


_BEGINNING = 4096
_MARKS = (f'name="generator" content="{GENERATOR} '.encode(), FIRST_LINE.encode())


def check_place(path: Path) -> None:
    """Refuse a place where no report can be written, before the work that it would report.

    A report of ours is replaced. Anything else that is there stays: a script that was named by mistake, a
    device, a folder.

    Raises:
        OutputExistsError: There is something else at the path.
        OutputError: There is no such folder, or the path cannot be read.
    """
    try:
        if not path.parent.is_dir():
            msg = f"There is no folder {str(path.parent)!r} for {str(path)!r}. Make it, or name another one."
            raise OutputError(msg, path=path)
        if not os.access(path.parent, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        is_free = _is_free(path)
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL, or that is no text
        if isinstance(error, OutputError):
            raise
        raise OutputError(f"{str(path)!r} cannot be written: {_reason(error)}.", path=path) from error
    if not is_free:
        what = "is a folder" if path.is_dir() else "exists already, and is no report of fsdp-migrate"
        raise OutputExistsError(f"{str(path)!r} {what}. It was left as it is: name another file.", path=path)


def write_report(path: Path, text: str) -> None:
    """Write a report, whole or not at all; an earlier one is replaced, also behind a link.

    Raises:
        OutputExistsError: There is something else at the path.
        OutputError: It cannot be written; nothing is left of it.
    """
    check_place(path)
    try:
        place = path.resolve()
        write_whole(place, text.encode("utf-8"), like=place if place.exists() else None)
    except (OSError, ValueError) as error:
        msg = f"{str(path)!r} cannot be written: {_reason(error)}. Nothing is left of it."
        raise OutputError(msg, path=path) from error


def _is_free(path: Path) -> bool:
    """Tell whether there is nothing at a path, or a report."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return True
    if not stat.S_ISREG(found.st_mode):
        return False
    with path.open("rb") as stream:
        beginning = stream.read(_BEGINNING)
    return not beginning or any(mark in beginning for mark in _MARKS)


def _reason(error: Exception) -> object:
    return getattr(error, "strerror", None) or error
