"""Which names of a model are one tensor: told by the model, by the files, or by the optimizer.

A file of torch.save stores tied weights once. A distributed checkpoint stores them once for each of their
names, and an optimizer has their state under one of them. torch.save wrote a checksum of each chunk into its
item, so little more than headers is read.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.formats.dcp_items import open_item
from fsdp_migrate.checkpoint_convert.formats.tensor_reader import TensorSource, hold_same_bits
from fsdp_migrate.checkpoint_convert.manifest.classify import entry_path, group_names, parameter_name
from fsdp_migrate.checkpoint_convert.manifest.manifest import TensorEntry
from fsdp_migrate.errors import CheckpointFormatError, UnsupportedFeatureError
from fsdp_migrate.findings import Finding, listed, make_finding


if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from fsdp_migrate.checkpoint_convert.manifest.manifest import Manifest, Part
    from fsdp_migrate.checkpoint_convert.storage.folders import Folder


# Layers of one kind have one shape; an embedding and a head are two.
_MOST_ALIKE: Final = 4
_MOST_READ: Final = 2000
_MOST_SAMPLED: Final = 256
_BLOCK: Final = 8 << 20
# How much of a tensor is read to see whether it can be another one, and whether it says anything.
_SAMPLE: Final = 4096
_FEWEST_BYTES: Final = 4


UNTIE: Final = (
    "The run that saved was that of a model without this tie, or FSDP1 broke it: load it into a model "
    "without it. A model with the tie takes one of the two, under FSDP1 that which its state dict names last."
)
"""What to do about two names of one parameter that hold other values."""


def torn_text(first: str) -> str:
    """Return what is said of a name whose tie to another one the checkpoint does not have.

    Example:
        >>> torn_text("embed.weight")
        'is one parameter with `embed.weight` in the model, and the checkpoint holds other values for each'
    """
    return f"is one parameter with `{first}` in the model, and the checkpoint holds other values for each"


def hold_other_values(folder: Folder, one: TensorEntry, other: TensorEntry) -> bool:
    """Tell whether two tensors of one type and shape hold other bits; what cannot be read is not told here.

    Most are told apart by a sample, and the rest by the checksums that torch.save stored.
    """
    if (one.shape, one.dtype) != (other.shape, other.dtype) or _place(one) == _place(other):
        return False
    samples = [_sample(folder, entry) for entry in (one, other)]
    if None not in samples and samples[0] != samples[1]:
        return True
    return _same_bits(folder, one, other) is False


def find_tied_keys(folder: Folder, manifest: Manifest) -> tuple[dict[str, str], list[Finding]]:
    """Return the key of each further name of a tied parameter with that of the first, and what to say.

    With ``--model`` the model tells; of its ties those that the checkpoint lacks have a finding. In files of
    torch.save tied tensors share their bytes. Elsewhere two names are one parameter if the optimizer knows
    the one and not the other, and both hold the same bits, which are not all the same number. Where less is
    known, a finding says which tensors have the same bytes, and that is all. What is damaged is not told.

    Args:
        folder: The source.
        manifest: What it holds.
    """
    optimizers = [part for part in manifest.parts if part.kind == "optimizer"]
    listed = {name for group in group_names(manifest, optimizers, {}) or () for name in group}
    with_state = {
        name
        for part in optimizers
        for key in part.keys
        if (name := parameter_name(part, entry_path(manifest.entries[key])))
    }
    ties: dict[str, str] = {}
    findings: list[Finding] = []
    for part in manifest.parts:
        if part.kind != "model":
            continue
        names = {
            parameter_name(part, entry_path(entry)) or key: entry
            for key in part.keys
            if isinstance(entry := manifest.entries[key], TensorEntry) and entry.nbytes
        }
        shared = _grouped(names.values(), _place)
        alike = list(_alike(folder, names, with_state))
        findings += _shared_findings("FM231", part, shared) + _shared_findings("FM272", part, alike)
        if manifest.outline is not None:
            firsts = {a: b for a, b in manifest.outline.aliases.items() if {a, b} <= names.keys()}
            for alias, first in firsts.items():
                if hold_other_values(folder, names[first], names[alias]):
                    text = f"it {torn_text(first)}."
                    findings.append(make_finding("FM273", names[alias].key, text, UNTIE))
                else:
                    ties[names[alias].key] = names[first].key
        # Where some share their bytes the file tells all ties: what else is alike only looks so.
        elif shared or not listed:
            ties.update({entry.key: group[0].key for group in shared for entry in group[1:]})
        else:
            ties.update(_untrained(folder, names, listed))
    return ties, findings


def _grouped(
    entries: Iterable[TensorEntry], key: Callable[[TensorEntry], Hashable]
) -> list[list[TensorEntry]]:
    """Return the tensors that have a key in common, as far as there are several; None is no key."""
    groups: defaultdict[Hashable, list[TensorEntry]] = defaultdict(list)
    for entry in entries:
        groups[key(entry)].append(entry)
    return [group for name, group in groups.items() if name is not None and len(group) > 1]


def _shared_findings(code: str, part: Part, groups: Sequence[Sequence[TensorEntry]]) -> list[Finding]:
    if not groups:
        return []
    shown = listed((" and ".join(f"`{entry.key}`" for entry in group) for group in groups), between="; ")
    return [make_finding(code, part.name, f"{len(groups)} of them: {shown}.")]


def _place(entry: TensorEntry) -> Hashable:
    """Return where a tensor is stored."""
    chunks = entry.chunks
    places = chunks[0].stored if len(chunks) == 1 else tuple(chunk.stored for chunk in chunks)
    return entry.shape, entry.dtype, places


def _kind(entry: TensorEntry) -> Hashable:
    boxes = tuple((chunk.offsets, chunk.sizes) for chunk in entry.chunks)
    return entry.dtype, entry.shape, boxes


def _alike(
    folder: Folder, names: dict[str, TensorEntry], with_state: set[str]
) -> Iterable[list[TensorEntry]]:
    """Yield matrices of a distributed checkpoint with the same bytes.

    Looked at are those of one shape: with an optimizer where it has no state of one of them, and without one
    where they are few.
    """
    untrained = {entry.key for name, entry in names.items() if name not in with_state}
    matrices = [e for e in names.values() if len(e.shape) > 1 and e.chunks[0].stored.raw is None]
    groups = _grouped(matrices, _kind)
    if with_state:
        groups = [group for group in groups if any(entry.key in untrained for entry in group)]
    else:
        groups = [group for group in groups if len(group) <= _MOST_ALIKE]
    if sum(len(entry.chunks) for group in groups for entry in group) > _MOST_READ:
        return
    for group in groups:
        yield from _grouped(group, lambda entry: _checksums(folder, entry))


def _checksums(folder: Folder, entry: TensorEntry) -> tuple[int, ...] | None:
    """Return the checksum that each chunk's item has of its elements, or None where one has none."""
    crcs: list[int] = []
    for chunk in entry.chunks:
        if chunk.stored.raw is not None:
            return None
        try:
            records = open_item(folder, chunk.stored, where=entry.key).records
        except (CheckpointFormatError, UnsupportedFeatureError):
            return None
        crcs += [record.crc for name, record in records.items() if name.startswith("data/")]
    # 0 may say that there is no checksum (`TorchZip.stored_crc`), and would make all of these alike.
    return tuple(crcs) if len(crcs) == len(entry.chunks) and all(crcs) else None


def _untrained(folder: Folder, names: dict[str, TensorEntry], listed: set[str]) -> dict[str, str]:
    """Return the tensors that an optimizer does not know, with those that it knows and that hold the same.

    A sample of each tells most apart. Only for those that are left all is compared: checksums, or bits where
    there are none. Kinds with few tensors come first, because layers of a model are rarely tied.
    """
    matrices = {name: e for name, e in names.items() if len(e.shape) > 1 and e.is_float}
    trained = {entry.key for name, entry in matrices.items() if name in listed}
    kinds = _grouped(matrices.values(), lambda entry: (entry.dtype, entry.shape))
    mixed = [group for group in kinds if 0 < sum(e.key in trained for e in group) < len(group)]
    found: dict[str, str] = {}
    sampled = 0
    for group in sorted(mixed, key=len):
        sampled += len(group)
        if sampled > _MOST_SAMPLED:
            break
        for same in _grouped(group, lambda entry: _sample(folder, entry)):
            known = [entry for entry in same if entry.key in trained]
            for entry in same:
                if entry.key not in trained:
                    first = next((other for other in known if _are_same(folder, entry, other)), None)
                    found |= {entry.key: first.key} if first is not None else {}
    return found


def _sample(folder: Folder, entry: TensorEntry) -> bytes | None:
    """Return the first elements of a tensor, or None where they are all alike or cannot be read."""
    box = (0,) * len(entry.shape), entry.shape
    try:
        sample = bytes(next(TensorSource(folder, _SAMPLE).read(entry, box)))
    except (CheckpointFormatError, UnsupportedFeatureError):
        return None
    # Zeros, or any one number, say nothing: two matrices can begin so without being tied.
    return sample if len(set(sample)) > _FEWEST_BYTES else None


def _are_same(folder: Folder, one: TensorEntry, other: TensorEntry) -> bool:
    return _same_bits(folder, one, other) is True


def _same_bits(folder: Folder, one: TensorEntry, other: TensorEntry) -> bool | None:
    """Tell whether two tensors hold the same; None where one cannot be read."""
    left, right = (_checksums(folder, entry) for entry in (one, other))
    if _kind(one) == _kind(other) and left is not None and right is not None:
        return left == right
    try:
        return hold_same_bits(folder, one, other, block_bytes=_BLOCK)
    except (CheckpointFormatError, UnsupportedFeatureError):
        return None
