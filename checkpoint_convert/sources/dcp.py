"""Folders of torch.distributed.checkpoint: from ``.metadata`` to :class:`Contents`."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.formats.checksums import CHECKSUMS_FILE
from fsdp_migrate.checkpoint_convert.formats.dcp_metadata_reader import (
    MetadataFile,
    read_metadata,
)
from fsdp_migrate.checkpoint_convert.formats.file_names import METADATA_FILE
from fsdp_migrate.checkpoint_convert.manifest.classify import with_bare_paths
from fsdp_migrate.checkpoint_convert.sources.contents import Contents
from fsdp_migrate.checkpoint_convert.storage.folders import is_url, refuse_links
from fsdp_migrate.errors import CheckpointFormatError, CheckpointReadError


if TYPE_CHECKING:
    from collections.abc import Mapping

    from fsdp_migrate.checkpoint_convert.manifest.manifest import Entry, Stored
    from fsdp_migrate.checkpoint_convert.storage.folders import Folder


_MAX_METADATA: Final = 1 << 30
_ZIP_START: Final = b"PK\x03\x04"
_FIRST_OF_REMOTE: Final = 16
_OWN: Final = frozenset({METADATA_FILE, CHECKSUMS_FILE})


def dcp_contents(folder: Folder, files: Mapping[str, int]) -> Contents:
    """Read what a folder of torch.distributed.checkpoint holds; data files are opened, not read.

    What its values ask for is another matter: see ``unlisted``.

    Raises:
        CheckpointFormatError: It is damaged, or does not fit its files.
    """
    where = f"{folder.url}/{METADATA_FILE}"
    if METADATA_FILE not in files:
        msg = (
            f"{where!r} is there, but is not listed among the files of its folder ({len(files)}): somebody "
            "writes or removes the checkpoint, or the service's lists lag behind. Try again in a minute."
        )
        raise CheckpointReadError(msg, path=where)
    size = files[METADATA_FILE]
    if size > _MAX_METADATA:
        msg = (
            f"{where!r} has {size} bytes; at most {_MAX_METADATA} are read, which is that of several million "
            "chunks. The file is damaged, or something else."
        )
        raise CheckpointFormatError(msg, path=where)
    data = folder.read(METADATA_FILE, 0, size)
    metadata = read_metadata(data, files, where=where)
    entries = with_bare_paths(metadata.entries)
    used = _used_files(entries, files)
    _check_files(folder, used, entries)
    return Contents(
        "dcp",
        "`.metadata` of torch.distributed.checkpoint",
        _torch_hint(metadata),
        entries=entries,
        files=used,
        own_files=_OWN,
        # torch 2.6 to 2.14 unpack 5 fields: "too many values to unpack (expected 5)".
        is_portable=metadata.property_sizes <= {5},
    )


def _used_files(entries: Mapping[str, Entry], files: Mapping[str, int]) -> dict[str, int]:
    used = {stored.file for entry in entries.values() for stored in entry.items}
    return {name: files[name] for name in sorted(used)}


def _check_files(folder: Folder, used: Mapping[str, int], entries: Mapping[str, Entry]) -> None:
    """Check that no data file leads out of the folder, and that the first item of each is an archive.

    Of a service each file takes a request. Some of them show another format, and whoever reads the rest
    notices.
    """
    refuse_links(folder, [METADATA_FILE, *used])
    first: dict[str, Stored] = {}
    for entry in entries.values():
        for stored in entry.items:
            first.setdefault(stored.file, stored)
    most = _FIRST_OF_REMOTE if is_url(folder.url) else len(first)
    for name, stored in itertools.islice(first.items(), most):
        start = folder.read(name, stored.offset, min(4, stored.length))
        if start != _ZIP_START:
            msg = (
                f"`{name}` in {folder.url!r} holds {start!r} at byte {stored.offset}, expected an item of "
                "torch.save. The file is damaged, or was written in another serialization format."
            )
            raise CheckpointFormatError(msg, path=f"{folder.url}/{name}")


def _torch_hint(metadata: MetadataFile) -> str:
    """Say which torch releases write metadata like this."""
    if 6 in metadata.property_sizes:
        return "2.15 or later"
    if metadata.version is not None:
        return "2.9 to 2.14"
    if metadata.has_modules:
        return "2.7 or 2.8"
    return "2.4 to 2.6" if metadata.has_storage_meta else "2.1 to 2.3"
