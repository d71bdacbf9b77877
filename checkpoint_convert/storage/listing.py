"""What lies behind an fsspec URL: lists and questions of which no failed one is read as "nothing there".

fsspec's own ``find``, ``exists`` and ``isfile`` take an error for an answer in many file systems: a folder
that may not be listed looks empty, and a file that cannot be reached looks missing.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any, Final


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


# Services that list everything below a prefix at once, a thousand objects a request, and have no folders.
FLAT_PROTOCOLS: Final = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oss", "oci"})
BUSY_FILE: Final = ".conversion-in-progress"
"""What a conversion leaves in a folder behind a URL until what is there is whole."""
_LIKE_A_FILE: Final = re.compile(r"\.[A-Za-z]\w*$")


def is_flat(fs: Any) -> bool:
    """Tell whether a file system has no folders, and lists all that is below a prefix at once."""
    own = fs.protocol
    return not FLAT_PROTOCOLS.isdisjoint([own] if isinstance(own, str) else own)


def look_at(fs: Any, path: str) -> tuple[str, Sequence[Mapping[str, Any]] | None]:
    """Return what is at a path, ``"file"`` or ``"directory"``, and what lies in it where that was told.

    Where there are no folders, one list of what lies below says both; fsspec's ``info`` asks twice, and does
    not say what is there.

    Raises:
        FileNotFoundError: There is nothing.
    """
    if is_flat(fs) and not _LIKE_A_FILE.search(path):
        # Some take an error for "nothing there" here, and none where they are asked for one path.
        with contextlib.suppress(FileNotFoundError):
            found = fs.ls(path, detail=True)
            if not any(info["name"] == path and info["type"] == "file" for info in found):
                return "directory", found
    return str(fs.info(path)["type"]), None


def files_in(folder: str, infos: Sequence[Mapping[str, Any]]) -> Mapping[str, Mapping[str, Any]] | None:
    """Return the files among what lies directly in a folder, by path; None where there are folders in it."""
    # Some services have an entry for the folder itself.
    inside = [info for info in infos if str(info["name"]).rstrip("/") != folder.rstrip("/")]
    if any(info["type"] != "file" for info in inside):
        return None
    return {str(info["name"]): info for info in inside}


def list_files(fs: Any, folder: str, max_depth: int | None = None) -> Mapping[str, Mapping[str, Any]]:
    """Return what is told of each file below a folder, by its path; nothing where there is no such folder.

    Raises:
        Exception: What :func:`list_down` does.
    """
    return list_down(fs, folder, max_depth)[0]


def list_down(
    fs: Any, folder: str, max_depth: int | None = None
) -> tuple[Mapping[str, Mapping[str, Any]], bool]:
    """Return what is told of each file below a folder, by its path, and whether these are all there are.

    Args:
        fs: An fsspec file system.
        folder: Where.
        max_depth: How many folders down to look; None for all the way.

    Raises:
        Exception: Whatever the file system raises where something cannot be listed.
    """
    with contextlib.suppress(FileNotFoundError):
        if max_depth is None and is_flat(fs):
            found: dict[str, dict[str, Any]] = fs.find(folder, detail=True)
        else:
            found = dict(_walk(fs, folder, max_depth))
        files = {name: info for name, info in found.items() if info["type"] == "file"}
        return files, not any(info["type"] == "directory" for info in found.values())
    return {}, True


def _walk(fs: Any, folder: str, depth: int | None) -> Iterator[tuple[str, dict[str, Any]]]:
    for info in fs.ls(folder, detail=True):
        name = str(info["name"]).rstrip("/")
        if name == folder.rstrip("/"):  # what stands for the folder itself in some services
            continue
        if info["type"] != "directory":
            yield str(info["name"]), info
        elif depth == 0:
            yield name, info
        else:
            # A folder that was removed meanwhile holds nothing.
            with contextlib.suppress(FileNotFoundError):
                yield from _walk(fs, name, None if depth is None else depth - 1)


def kind_at(fs: Any, path: str) -> str | None:
    """Return what is at a path, ``"file"`` or ``"directory"``; None where there is nothing."""
    try:
        return str(fs.info(path)["type"])
    except FileNotFoundError:
        return None
