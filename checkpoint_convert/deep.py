"""Read every stored item: is it whole, is it what the metadata says, and did torch save it corrupt?"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from fsdp_migrate.checkpoint_convert.items import load_item, open_item, open_value
from fsdp_migrate.checkpoint_convert.metadata import BytesEntry, Manifest, TensorEntry
from fsdp_migrate.checkpoint_convert.parts import entry_path
from fsdp_migrate.checkpoint_convert.tensor_stream import TensorSource
from fsdp_migrate.errors import UnsafePickleError
from fsdp_migrate.findings import Finding, make_finding


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.checkpoint_convert.storage import Folder

_BLOCK: Final = 8 << 20


def inspect_items(folder: Folder, manifest: Manifest) -> Manifest:
    """Return the manifest with what reading every item has shown.

    Raises:
        CheckpointFormatError: An item is damaged, or not what the metadata says.
    """
    source = TensorSource(folder, _BLOCK)
    known = {names.key for names in manifest.name_lists if names.names is None}
    findings = list(manifest.findings)
    for entry in manifest.entries.values():
        if isinstance(entry, TensorEntry):
            _check_tensor(folder, source, entry)
        else:
            findings += _check_value(folder, entry, known)
    findings += _equal_moments(source, manifest)
    return replace(manifest, findings=tuple(findings))


def _check_tensor(folder: Folder, source: TensorSource, entry: TensorEntry) -> None:
    for chunk in entry.chunks:
        source.locate(entry, chunk)
        if chunk.stored.raw is not None:
            continue
        where = f"`{entry.key}` at {chunk.offsets} in '{folder.url}/{chunk.stored.file}'"
        archive = open_item(folder, chunk.stored, where=where)
        for name in archive.records:
            archive.check_crc(name)


def _check_value(folder: Folder, entry: BytesEntry, known: set[str]) -> Iterator[Finding]:
    archive = open_value(folder, entry, where=f"`{entry.key}` in {folder.url!r}")
    for name in archive.records:
        archive.check_crc(name)
    try:
        load_item(archive)
    except UnsafePickleError as error:
        if entry.key not in known:
            name = error.global_name or "an opcode that is not allowed"
            yield make_finding("FM209", entry.key, f"it asks for `{name}`, so it was not looked into.")


def _equal_moments(source: TensorSource, manifest: Manifest) -> Iterator[Finding]:
    """Find what torch does to full optimizer state on CPU: one moment saved as both."""
    entries = {entry_path(entry): entry for entry in manifest.tensors}
    for part in manifest.parts:
        if part.kind != "optimizer":
            continue
        pairs = [
            (first, second)
            for path, first in entries.items()
            if path[: len(part.prefix)] == part.prefix
            and str(path[-1]).endswith("exp_avg")
            and (second := entries.get((*path[:-1], f"{path[-1]}_sq"))) is not None
        ]
        equal = [first.key for first, second in pairs if _are_equal(source, first, second)]
        if equal:
            yield make_finding(
                "FM217",
                part.name,
                f"{len(equal)} of {len(pairs)} parameters, such as `{equal[0]}`. torch does that to a "
                "full optimizer state on CPU with offload_to_cpu=True.",
                "Save it again with offload_to_cpu=False, or SHARDED_STATE_DICT.",
            )


def _are_equal(source: TensorSource, first: TensorEntry, second: TensorEntry) -> bool:
    if (first.shape, first.dtype) != (second.shape, second.dtype) or len(first.chunks) != len(second.chunks):
        return False
    box = (0,) * len(first.shape), first.shape
    other = TensorSource(source.folder, _BLOCK)
    is_zero = True
    for one, two in zip(source.read(first, box), other.read(second, box), strict=True):
        if not np.array_equal(np.frombuffer(one, np.uint8), np.frombuffer(two, np.uint8)):
            return False
        is_zero = is_zero and not np.frombuffer(one, np.uint8).any()
    return not is_zero
