"""Is a checkpoint an output of ours? Told by the first bytes of its files, or by what an archive lacks."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.formats.dcp_metadata_writer import METADATA_START
from fsdp_migrate.checkpoint_convert.formats.file_names import METADATA_FILE
from fsdp_migrate.checkpoint_convert.formats.safetensors_writer import HEADER_START
from fsdp_migrate.checkpoint_convert.formats.torch_file import ZIP_START
from fsdp_migrate.checkpoint_convert.formats.whole_files import SAVED_SUFFIXES
from fsdp_migrate.checkpoint_convert.formats.zip_writer import are_records_of_ours


if TYPE_CHECKING:
    from pathlib import Path


_WEIGHTS: Final = ".safetensors"
# Before the pickle: its protocol and the length of its first frame. Before the header: its length.
_PICKLE_AT: Final = 11
_HEADER_AT: Final = 8


def is_made_here(path: Path) -> bool:
    """Tell whether a conversion of this package wrote a checkpoint, and nobody has saved into it since.

    Args:
        path: A file, or a folder; frameworks keep model and optimizer in folders of their own below it.

    Example:
        >>> from pathlib import Path
        >>> is_made_here(Path("tests/checkpoint/data/torch-2.13.0/plain.dcp"))
        False
    """
    try:
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        below = [file for each in files if each.is_dir() and (file := each / METADATA_FILE).is_file()]
        if metadata := [each for each in files if each.name == METADATA_FILE] + below:
            return all(_starts_with(each, _PICKLE_AT, METADATA_START) for each in metadata)
        if weights := [each for each in files if each.suffix == _WEIGHTS]:
            return all(_starts_with(each, _HEADER_AT, HEADER_START) for each in weights)
        # What a framework saved beside model and optimizer was copied as it is.
        return any(_is_our_archive(each) for each in files if each.suffix in SAVED_SUFFIXES)
    except OSError:
        return False


def _is_our_archive(file: Path) -> bool:
    if not _starts_with(file, 0, ZIP_START):
        return False
    try:
        with zipfile.ZipFile(file) as archive:
            return are_records_of_ours(archive.namelist())
    except zipfile.BadZipFile:
        return False


def _starts_with(file: Path, at: int, wanted: bytes) -> bool:
    with file.open("rb") as stream:
        return stream.read(at + len(wanted))[at:] == wanted
