"""What lies behind an fsspec URL: lists and questions of which no failed one is read as "nothing there".

fsspec's own ``find``, ``exists`` and ``isfile`` take an error for an answer in many file systems: a folder
that may not be listed looks empty, and a file that cannot be reached looks missing.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


# Services that list everything below a prefix at once, a thousand objects a request, and have no folders.
FLAT_PROTOCOLS: Final = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oss", "oci"})


BUSY_FILE: Final = ".conversion-in-progress"
"""What a conversion leaves in a folder behind a URL until what is there is whole."""


def is_flat(fs: Any) -> bool:
    """Tell whether a file system has no folders, and lists all that is below a prefix at once."""
    own = fs.protocol
    return not FLAT_PROTOCOLS.isdisjoint([own] if isinstance(own, str) else own)


def list_files(fs: Any, folder: str, max_depth: int | None = None) -> Mapping[str, Mapping[str, Any]]:
    """Return what is told of each file below a folder, by its path; nothing where there is no such folder.

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
        return {name: info for name, info in found.items() if info["type"] == "file"}
    return {}


def _walk(fs: Any, folder: str, depth: int | None) -> Iterator[tuple[str, dict[str, Any]]]:
    for info in fs.ls(folder, detail=True):
        name = str(info["name"]).rstrip("/")
        if name == folder.rstrip("/"):  # what stands for the folder itself in some services
            continue
        if info["type"] != "directory":
            yield str(info["name"]), info
        elif depth is None or depth > 0:
            # A folder that was removed meanwhile holds nothing.
            with contextlib.suppress(FileNotFoundError):
                yield from _walk(fs, name, None if depth is None else depth - 1)


def kind_at(fs: Any, path: str) -> str | None:
    """Return what is at a path, ``"file"`` or ``"directory"``; None where there is nothing."""
    try:
        return str(fs.info(path)["type"])
    except FileNotFoundError:
        return None
