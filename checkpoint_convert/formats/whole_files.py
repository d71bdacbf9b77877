"""Is a file of the user's own an archive of torch.save, even where one byte of it is damaged?"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.formats.torch_file import ZIP_START
from fsdp_migrate.checkpoint_convert.formats.zip_reader import TorchZip
from fsdp_migrate.errors import CheckpointFormatError, UnsupportedFeatureError


if TYPE_CHECKING:
    from fsdp_migrate.checkpoint_convert.storage.folders import Folder


SAVED_SUFFIXES: Final = (".pt", ".pth", ".bin", ".ckpt", ".pkl")
"""What people carry along that torch.save may have written."""
# What the directory at the end of an archive of torch.save has; one byte that changed spoils one of these.
_SAVED_MARKS: Final = (b"/data.pkl", b"/version", b"PK\x01\x02", b"PK\x05\x06")
_TAIL: Final = 64 << 10
# The end record of a zip file (APPNOTE 4.3.16), and what ZIP64 puts before it.
_END: Final = b"PK\x05\x06"
_END_BYTES: Final = 22
_ZIP64_BYTES: Final = 56 + 20


def open_whole_file(folder: Folder, name: str, size: int, *, is_own: bool) -> TorchZip | None:
    """Open a file as the archive of torch.save that it is; None where it is none.

    Args:
        folder: Where it lies.
        name: Its name there.
        size: Its size.
        is_own: Whether a checkpoint consists of it, so that it is not somebody's archive of another kind.

    Raises:
        CheckpointFormatError: It is one, and damaged.
        UnsupportedFeatureError: It is one that cannot be read.
    """
    start = folder.read(name, 0, min(size, len(ZIP_START)))
    ends_as_saved = _ends_as_saved(folder, name, size)
    if start != ZIP_START and not ends_as_saved:
        return None
    try:
        return TorchZip(
            lambda offset, length: folder.read(name, offset, length),
            0,
            size,
            where=f"'{folder.url}/{name}'",
        )
    except (CheckpointFormatError, UnsupportedFeatureError):
        if is_own or ends_as_saved:
            raise
        return None


def _ends_as_saved(folder: Folder, name: str, size: int) -> bool:
    """Tell whether a file ends as torch.save ends an archive, even if one byte of the file is damaged."""
    length = min(size, _TAIL)
    tail = folder.read(name, size - length, length)
    found = sum(mark in tail for mark in _SAVED_MARKS)
    return found >= len(_SAVED_MARKS) - 1 and not _begins_later(folder, name, size, tail)


def _begins_later(folder: Folder, name: str, size: int, tail: bytes) -> bool:
    """Tell whether the last archive begins within the file, after others: data of a checkpoint."""
    at = tail.rfind(_END)
    if at < 0 or at + _END_BYTES > len(tail):
        return False
    directory, offset = struct.unpack_from("<II", tail, at + 12)
    end = size - len(tail) + at
    # What the offset of the directory is too small by is what stands before the archive.
    starts = (end - directory - offset - between for between in (0, _ZIP64_BYTES))
    return any(start > 0 and folder.read(name, start, len(ZIP_START)) == ZIP_START for start in starts)
