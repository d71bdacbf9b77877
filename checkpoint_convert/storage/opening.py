"""Open what a user names: a folder, a file, or a file that is packed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from fsdp_migrate.checkpoint_convert.storage.compressed import is_packed, is_saved_as_it_is, open_unpacked
from fsdp_migrate.checkpoint_convert.storage.fsspec import open_folder_at


if TYPE_CHECKING:
    from fsdp_migrate.checkpoint_convert.storage.folders import Folder, Location


def open_folder(location: Location) -> Folder:
    """Open a folder for reading, or one file as a folder that holds nothing else, unpacked if it is packed.

    Raises:
        CheckpointNotFoundError: There is nothing there.
        CheckpointFormatError: It is neither, or a packed file that is damaged.
    """
    return unpacked(open_folder_at(location), location)


def unpacked(folder: Folder, location: Location) -> Folder:
    """Return the folder that a location was opened as, or that of what was packed in the one file there.

    Raises:
        CheckpointFormatError: It is a packed file that is damaged.
    """
    name = os.fspath(location).rstrip("/").rpartition("/")[2]
    is_named = is_packed(name) and getattr(folder, "only", None) == name
    # timm and torch's own examples call what torch.save writes `.pth.tar`.
    if is_named and not is_saved_as_it_is(folder, name):
        folder.close()
        return open_unpacked(location)
    return folder
