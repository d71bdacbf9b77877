"""Whole folders behind URLs: copied and removed so that no half of one ever looks whole.

What makes a checkpoint of files, ``.metadata`` or an index, is copied last and removed first. A list that
lacks what is there is not believed, and a removal that leaves something is not taken for done.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from fsdp_migrate.checkpoint_convert.formats.file_names import METADATA_FILE
from fsdp_migrate.checkpoint_convert.storage.listing import is_flat, kind_at, list_files
from fsdp_migrate.checkpoint_convert.storage.model_files import FULL_MODEL
from fsdp_migrate.errors import OutputError


if TYPE_CHECKING:
    from collections.abc import Iterable


LAST: Final = (METADATA_FILE, ".index.json", FULL_MODEL)
"""How the names end of what makes a checkpoint of files."""


def files_below(fs: Any, folder: str) -> list[str]:
    """Return the path of every file below a folder, as the service lists it now.

    Raises:
        OutputError: ``.metadata`` is there and not in the list: so other files may be missing in it, too.
    """
    fs.invalidate_cache()
    found = sorted(list_files(fs, folder))
    metadata = f"{folder}/{METADATA_FILE}"
    # What was just listed would answer.
    fs.invalidate_cache()
    if metadata not in found and kind_at(fs, metadata) == "file":
        msg = (
            f"{metadata!r} is there, but the service does not list it: its lists lag behind, so nothing "
            "there is copied or removed. Try again in a minute."
        )
        raise OutputError(msg, path=folder)
    return found


def is_there(fs: Any, folder: str) -> bool:
    """Tell whether there is a folder, or a checkpoint that the service does not list yet."""
    fs.invalidate_cache()
    return kind_at(fs, folder) is not None or kind_at(fs, f"{folder}/{METADATA_FILE}") is not None


def create_alone(fs: Any, path: str, data: bytes) -> None:
    """Create a file that must not be there yet.

    Raises:
        FileExistsError: It is.
    """
    try:
        fs.pipe_file(path, data, mode="create")
    except (TypeError, NotImplementedError):  # an fsspec, or a service, without that
        if kind_at(fs, path) is not None:
            raise FileExistsError(path) from None
        # Two that ask at once both come here; the one that is written over is stopped before `.metadata`.
        fs.pipe_file(path, data)


def copy_files(fs: Any, source: str, target: str, names: Iterable[str]) -> None:
    """Copy files of a folder into another one, within the service."""
    made: set[str] = set()
    for name in sorted(names, key=lambda name: (name.endswith(LAST), name)):
        parent = f"{target}/{name}".rpartition("/")[0]
        if parent not in made and not is_flat(fs):
            fs.makedirs(parent, exist_ok=True)
            made.add(parent)
        fs.cp_file(f"{source}/{name}", f"{target}/{name}")


def copy_folder(fs: Any, source: str, target: str) -> None:
    """Copy a folder with all that is in it, or nothing of it.

    Raises:
        OutputError: The service does not list all of it.
    """
    names = [path.removeprefix(f"{source}/") for path in files_below(fs, source)]
    try:
        copy_files(fs, source, target, names)
    except BaseException:
        with contextlib.suppress(Exception):
            remove_folder(fs, target)
        raise


def remove_files(fs: Any, folder: str, paths: Iterable[str]) -> None:
    """Remove files of a folder.

    Raises:
        OutputError: Some are there still.
    """
    wanted = set(paths)
    for path in sorted(wanted):
        if path.endswith(LAST):
            fs.rm_file(path)
    rest = sorted(path for path in wanted if not path.endswith(LAST))
    if not rest:
        return
    # S3 takes a thousand at once. Which of them it refused, s3fs does not say.
    fs.rm(rest)
    fs.invalidate_cache()
    listed = [path for path in list_files(fs, folder) if path in wanted]
    fs.invalidate_cache()
    left = next((path for path in listed if kind_at(fs, path) is not None), None)
    if left is not None:
        msg = f"{left!r} could not be removed, and the service gave no reason. May you delete objects there?"
        raise OutputError(msg, path=left)


def remove_folder(fs: Any, folder: str, keep: str = "") -> None:
    """Remove a folder with all that is in it, or with all but one file.

    Raises:
        OutputError: Something in it could not be removed. ``.metadata`` and indexes are, or nothing is.
    """
    remove_files(fs, folder, (path for path in files_below(fs, folder) if path != keep))
    if is_flat(fs) or kind_at(fs, folder) is None:
        return
    # The files are gone by now: what is left are folders, where the service has any.
    for path in fs.ls(folder, detail=False) if keep else [folder]:
        if path != keep:
            fs.rm(path, recursive=True)
