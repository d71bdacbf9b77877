"""Composer's ``.symlink`` files: the path of the newest checkpoint, as text, where there are no links."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.storage.folders import is_url, local_path
from fsdp_migrate.checkpoint_convert.storage.fsspec import open_parent
from fsdp_migrate.errors import CheckpointFormatError, CheckpointNotFoundError


if TYPE_CHECKING:
    from fsdp_migrate.checkpoint_convert.storage.folders import Folder, Location


SUFFIX: Final = ".symlink"
_MAX_TEXT: Final = 4096


def follow_symlink_file(location: Location) -> Location:
    """Return what a ``.symlink`` file names, or any other location as it is.

    Composer writes the name that the checkpoint has in the bucket (``run/checkpoints/ep0-ba2-rank0.pt``). It
    is looked for beside the file, by the whole of that name or by its end, and nowhere else: whoever made the
    file does not decide what is read.

    Raises:
        CheckpointNotFoundError: What it names is not beside it.
        CheckpointFormatError: It is no such file.
    """
    text = os.fspath(location)
    if not text.endswith(SUFFIX) or (not is_url(location) and local_path(location).is_dir()):
        return location
    parent, _, name = text.rpartition("/")
    folder = open_parent(parent or ".")
    try:
        target = _target(folder, name, text)
        found = _beside(folder, target)
    finally:
        folder.close()
    if found is None:
        msg = f"{text!r} names {target!r}, and there is nothing of that name beside it."
        raise CheckpointNotFoundError(msg, path=text)
    return f"{parent}/{found}" if parent else found


def _target(folder: Folder, name: str, text: str) -> str:
    size = folder.files(0).get(name)
    if size is None:
        raise CheckpointNotFoundError(f"There is nothing at {text!r}.", path=text)
    data = folder.read(name, 0, min(size, _MAX_TEXT + 1))
    target = data.decode("utf-8", "replace").strip()
    if size > _MAX_TEXT or not target or not target.isprintable() or ".." in target.split("/"):
        msg = f"{text!r} holds no path, as Composer's symlink files do, but {data[:40]!r}."
        raise CheckpointFormatError(msg, path=text)
    return target


def _beside(folder: Folder, target: str) -> str | None:
    parts = [part for part in target.split("/") if part not in ("", ".")]
    if parts[-1:] == [".metadata"]:
        parts.pop()
    names = folder.files(len(parts))
    folders = {name.rpartition("/")[0] for name in names}
    for start in range(len(parts)):
        end = "/".join(parts[start:])
        if end in names or end in folders:
            return end
    return None
