"""Which tensors of a distributed checkpoint were one tensor: those with the same bytes, where that is likely.

A distributed checkpoint stores tied weights once for each of their names, and an optimizer has their state
under one of them. torch.save wrote a checksum of each chunk into its item, so nothing but headers is read.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.formats.dcp_items import open_item
from fsdp_migrate.checkpoint_convert.manifest.classify import entry_path, parameter_name
from fsdp_migrate.checkpoint_convert.manifest.manifest import Entry, Part, TensorEntry
from fsdp_migrate.errors import CheckpointFormatError, UnsupportedFeatureError
from fsdp_migrate.findings import Finding, make_finding


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fsdp_migrate.checkpoint_convert.storage.folders import Folder


# Layers of one kind have one shape; an embedding and a head are two.
_MOST_ALIKE: Final = 4
_MOST_READ: Final = 2000
_Kind = tuple[object, ...]


def find_ties(folder: Folder, entries: Mapping[str, Entry], parts: Sequence[Part]) -> Iterator[Finding]:
    """Yield a finding for each model in which tensors have the same bytes, as tied weights have.

    Looked at are matrices of one shape: with an optimizer where it has no state of one of them, and without
    one where they are few. What is damaged is not told here.
    """
    trained = {
        name
        for part in parts
        for key in part.keys
        if part.kind == "optimizer" and (name := parameter_name(part, entry_path(entries[key])))
    }
    for part in parts:
        if part.kind != "model":
            continue
        tied = list(_tied(folder, _alike(part, entries, trained)))
        if tied:
            shown = "; ".join(" and ".join(f"`{key}`" for key in keys) for keys in tied[:4])
            yield make_finding("FM272", part.name, f"{len(tied)} of them: {shown}.")


def _alike(part: Part, entries: Mapping[str, Entry], trained: set[str]) -> list[list[TensorEntry]]:
    """Return the tensors that may be tied, by type, shape and chunks."""
    alike: defaultdict[_Kind, list[TensorEntry]] = defaultdict(list)
    untrained: set[str] = set()
    for key in part.keys:
        entry = entries[key]
        if isinstance(entry, TensorEntry) and len(entry.shape) > 1 and entry.nbytes:
            boxes = tuple((chunk.offsets, chunk.sizes) for chunk in entry.chunks)
            alike[entry.dtype, entry.shape, boxes].append(entry)
            if parameter_name(part, entry_path(entry)) not in trained:
                untrained.add(key)
    groups = [group for group in alike.values() if len(group) > 1]
    if trained:
        groups = [group for group in groups if any(entry.key in untrained for entry in group)]
    else:
        groups = [group for group in groups if len(group) <= _MOST_ALIKE]
    return groups if sum(len(e.chunks) for group in groups for e in group) <= _MOST_READ else []


def _tied(folder: Folder, groups: Sequence[Sequence[TensorEntry]]) -> Iterator[list[str]]:
    for group in groups:
        same: defaultdict[tuple[int, ...], list[str]] = defaultdict(list)
        for entry in group:
            crcs = _checksums(folder, entry)
            if crcs is not None:
                same[crcs].append(entry.key)
        yield from (keys for keys in same.values() if len(keys) > 1)


def _checksums(folder: Folder, entry: TensorEntry) -> tuple[int, ...] | None:
    """Return the checksum that each chunk's item has of its elements, or None where one has none."""
    crcs: list[int] = []
    for chunk in entry.chunks:
        try:
            records = open_item(folder, chunk.stored, where=entry.key).records
        except (CheckpointFormatError, UnsupportedFeatureError):
            return None
        crcs += [record.crc for name, record in records.items() if name.startswith("data/")]
    return tuple(crcs) if len(crcs) == len(entry.chunks) and all(crcs) else None
