"""Put the parts of a state together that ranks saved each for itself, without a process group."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.formats.dcp_items import place_tensor
from fsdp_migrate.checkpoint_convert.formats.pickle_writer import pickle_value
from fsdp_migrate.checkpoint_convert.formats.sharded_values import LocalShards, ShardedValue, local_shards
from fsdp_migrate.checkpoint_convert.formats.tensor_reader import TensorSource
from fsdp_migrate.checkpoint_convert.formats.torch_values import TensorValue
from fsdp_migrate.checkpoint_convert.manifest.boxes import Box, tiling_problem
from fsdp_migrate.checkpoint_convert.manifest.classify import entry_path, find_parts
from fsdp_migrate.checkpoint_convert.manifest.keys import join_path
from fsdp_migrate.checkpoint_convert.manifest.manifest import BytesEntry, Chunk, Entry, Stored, TensorEntry
from fsdp_migrate.checkpoint_convert.sources.content_findings import FLAT_PIECES, FLAT_PIECES_HINT, is_fsdp1s
from fsdp_migrate.checkpoint_convert.sources.contents import BY_RANK, leaf_entry
from fsdp_migrate.errors import CheckpointMismatchError, CheckpointNotFoundError, UnsupportedFeatureError
from fsdp_migrate.findings import Finding, counted, make_finding, named


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fsdp_migrate.checkpoint_convert.manifest.boxes import Shape
    from fsdp_migrate.checkpoint_convert.manifest.keys import Path
    from fsdp_migrate.checkpoint_convert.manifest.manifest import Part
    from fsdp_migrate.checkpoint_convert.storage.folders import Folder


Leaves = dict[str, tuple["Path", object]]
_BLOCK: Final = 8 << 20


@dataclass(frozen=True)
class RankState:
    """What one rank saved: its file, the leaves in it by key, and what there is to say of it."""

    rank: int
    file: str
    leaves: Leaves
    findings: tuple[Finding, ...] = ()


@dataclass
class Merged:
    """What the ranks' states are together.

    Attributes:
        entries: The entries.
        sharded: How many of them were put together from parts.
        differing: The keys of what is not the same on every rank that has it, each with those of the others.
        partial: The keys of what some ranks do not have, with one of these.
        chosen: The keys of tensors of models that differed, and of which one rank's was kept.
    """

    entries: dict[str, Entry] = field(default_factory=dict)
    sharded: int = 0
    differing: dict[str, list[str]] = field(default_factory=dict)
    partial: dict[str, RankState] = field(default_factory=dict)
    chosen: list[str] = field(default_factory=list)


def merge_states(folder: Folder, states: Sequence[RankState]) -> Merged:
    """Put states together: sharded tensors from their parts, everything else once where it is the same.

    Of what differs, that of the lowest rank keeps its name; those of other ranks stand under ``ranks``.

    Raises:
        CheckpointMismatchError: Ranks contradict each other: overlaps, holes, other shapes, other replicas.
        CheckpointNotFoundError: The tensors are of more ranks than there are files.
        CheckpointFormatError: A file contradicts itself.
    """
    merged = Merged()
    merger = _Merger(folder, states, merged)
    keys = dict.fromkeys(key for state in states for key in state.leaves)
    for key in keys:
        merger.add(key)
    return merged


class _Merger:
    def __init__(self, folder: Folder, states: Sequence[RankState], merged: Merged) -> None:
        self._folder = folder
        self._states = states
        self._merged = merged

    def add(self, key: str) -> None:
        holders = [state for state in self._states if key in state.leaves]
        path = holders[0].leaves[key][0]
        leaves = [state.leaves[key][1] for state in holders]
        if len(holders) < len(self._states):
            self._merged.partial[key] = next(s for s in self._states if key not in s.leaves)
        if any(isinstance(leaf, ShardedValue) for leaf in leaves):
            self._merged.entries[key] = self._sharded(key, path, holders)
            self._merged.sharded += 1
            return
        self._merged.entries[key] = self._entry(key, path, holders[0], leaves[0])
        for state, leaf in zip(holders[1:], leaves[1:], strict=True):
            if not same_leaves(self._folder, key, leaves[0], leaf):
                self._differs(key, path, state, leaf, holders[0])

    def _differs(self, key: str, path: Path, state: RankState, leaf: object, first: RankState) -> None:
        kept = self._merged.entries[key]
        if isinstance(leaf, TensorValue) and isinstance(kept, TensorEntry) and leaf.shape != kept.shape:
            raise ranks_mismatch(
                self._folder,
                f"`{key}` has the shape {list(kept.shape)} in `{first.file}` and {list(leaf.shape)} in "
                f"`{state.file}`, and nothing says which part of it is which",
            )
        own = (BY_RANK, str(state.rank), *path)
        name = join_path(own)
        self._merged.entries[name] = self._entry(name, own, state, leaf)
        self._merged.differing.setdefault(key, []).append(name)

    def _entry(self, key: str, path: Path, state: RankState, leaf: object) -> Entry:
        return leaf_entry(key, path, leaf, file=state.file, where=self._at(state))

    def _at(self, state: RankState) -> str:
        return f"'{self._folder.url}/{state.file}'"

    def _sharded(self, key: str, path: Path, holders: Sequence[RankState]) -> TensorEntry:
        parts: list[tuple[RankState, LocalShards]] = []
        for state in holders:
            leaf = state.leaves[key][1]
            if not isinstance(leaf, ShardedValue):
                what = f"`{key}` is sharded in `{holders[0].file}` and not in `{state.file}`"
                raise ranks_mismatch(self._folder, what)
            shards = local_shards(leaf, where=f"`{key}` in {self._at(state)}")
            _check_rank(self._folder, key, state, shards)
            parts.append((state, shards))
        first = parts[0][1]
        for state, shards in parts[1:]:
            if (shards.dtype, shards.shape, shards.expected) != (first.dtype, first.shape, first.expected):
                raise ranks_mismatch(
                    self._folder,
                    f"`{key}` is {first.dtype} of shape {list(first.shape)} in `{parts[0][0].file}`, and "
                    f"{shards.dtype} of shape {list(shards.shape)}, or divided in another way, in "
                    f"`{state.file}`",
                )
        # Before the chunks are looked at: that a file is missing says more than which elements are.
        check_complete(self._folder, key, parts, len(self._states))
        return TensorEntry(key, path, first.dtype, first.shape, self._chunks(key, parts))

    def _chunks(self, key: str, parts: Sequence[tuple[RankState, LocalShards]]) -> tuple[Chunk, ...]:
        found: dict[Box, tuple[RankState, TensorValue]] = {}
        for state, shards in parts:
            for box, tensor in zip(shards.boxes, shards.tensors, strict=True):
                # Replicas (HSDP) hold the same parts; where their bits differ, no one of them is right.
                known = found.setdefault(box, (state, tensor))
                if known[1] is not tensor and not _same_bytes(self._folder, key, known[1], tensor):
                    raise replicas_differ(self._folder, key, box, known[0].file, state.file)
        # Ranks beyond the last row hold empty parts; a tensor without elements keeps one of them.
        boxes = {box: holder for box, holder in found.items() if math.prod(box[1])}
        kept = boxes or dict(list(found.items())[:1])
        problem = tiling_problem(parts[0][1].shape, list(kept))
        if problem is not None:
            files = named(state.file for state, _ in parts)
            what = f"`{key}` of shape {list(parts[0][1].shape)}: {problem}, in {files}"
            raise ranks_mismatch(self._folder, what)
        return tuple(
            Chunk(*box, place_tensor(tensor, where=f"`{key}` in {self._at(state)}"))
            for box, (state, tensor) in sorted(kept.items())
        )


def check_complete(
    folder: Folder, key: str, parts: Sequence[tuple[RankState, LocalShards]], files: int
) -> None:
    """Check that no rank's part of a tensor is missing, by what the others say.

    Args:
        folder: Where the files lie.
        key: The tensor.
        parts: What each rank that holds a part says of it.
        files: How many ranks there are files of.

    Raises:
        CheckpointNotFoundError: A part is missing.
    """
    # A ShardedTensor lists the boxes of all ranks; of a DTensor only the number of ranks is known.
    count = max(shards.ranks for _, shards in parts)
    held = {box for _, shards in parts for box in shards.boxes}
    expected = parts[0][1].expected
    lost = [box for box in expected or () if box not in held]
    if not lost and (expected is not None or files >= count):
        return
    at = f"its part at {lost[0][0]} is in none of them" if lost else "so some are missing"
    msg = (
        f"`{key}` in {folder.url!r} was saved by {counted(count, 'rank')}, and there are "
        f"files of {files} (`{parts[0][0].file}` ...): {at}. All of them are needed."
    )
    if ".lora_" in key:
        msg += (
            " It is an adapter: Accelerate before 1.15 saved rank 0's slice of each alone. The rest "
            "is in PEFT's `adapter_model` file or a distributed checkpoint of the same step, if any."
        )
    raise CheckpointNotFoundError(msg, path=folder.url)


def same_leaves(folder: Folder, key: str, one: object, other: object) -> bool:
    """Tell whether two leaves of states say the same, tensors bit for bit."""
    if isinstance(one, TensorValue) and isinstance(other, TensorValue):
        is_alike = (one.shape, one.dtype) == (other.shape, other.dtype)
        return is_alike and _same_bytes(folder, key, one, other)
    if isinstance(one, TensorValue) or isinstance(other, TensorValue):
        return False
    try:
        # As they would be written: so 1 is not True, and objects are compared that are only names here.
        (first, tensors), (second, others) = (pickle_value(value, where=key) for value in (one, other))
    except UnsupportedFeatureError:
        return False  # what cannot be compared is kept of every rank
    return first == second and all(
        _same_bytes(folder, key, a, b) for a, b in zip(tensors, others, strict=True)
    )


def _same_bytes(folder: Folder, key: str, one: TensorValue, other: TensorValue) -> bool:
    places = (place_tensor(value, where=key) for value in (one, other))
    return hold_same(folder, key, one.dtype, one.shape, *places)


def hold_same(folder: Folder, key: str, dtype: str, sizes: Shape, one: Stored, other: Stored) -> bool:
    """Tell whether the same bits are stored at two places, which hold chunks of one size.

    Where checksums tell it nothing is read: of 2**32 that differ two would have the same, and replicas that
    part do so in more than one tensor.
    """
    told = _checksum(one)
    if told is not None and told == _checksum(other):
        return True
    box = (0,) * len(sizes), sizes
    entries = (TensorEntry(key, None, dtype, sizes, (Chunk(*box, stored),)) for stored in (one, other))
    readers = [TensorSource(folder, _BLOCK).read(entry, box) for entry in entries]
    return all(a == b for a, b in zip(*readers, strict=True))


def _checksum(stored: Stored) -> tuple[object, ...] | None:
    """Return the checksum of the record that elements lie in, and where in it they do; None without one."""
    raw = stored.raw
    if raw is None or raw.record is None:
        return None
    at = stored.offset - raw.record.position
    return raw.record.crc, raw.record.size, at, stored.length, raw.strides, raw.start


def _check_rank(folder: Folder, key: str, state: RankState, shards: LocalShards) -> None:
    if shards.rank is not None and shards.rank != state.rank:
        raise ranks_mismatch(
            folder,
            f"`{state.file}` is named as that of rank {state.rank}, and `{key}` in it says {shards.rank}",
        )


def ranks_mismatch(folder: Folder, what: str) -> CheckpointMismatchError:
    """Return the error for ranks that contradict each other."""
    msg = f"The ranks' files in {folder.url!r} do not fit together: {what}. Are they of one save?"
    return CheckpointMismatchError(msg, path=folder.url)


def replicas_differ(folder: Folder, key: str, box: Box, one: str, other: str) -> CheckpointMismatchError:
    """Return the error for two files that hold the same part of a tensor, and not the same bits of it."""
    what = f"`{one}` and `{other}` hold the same part of `{key}`, at {box[0]}, and their bits differ"
    return ranks_mismatch(folder, what)


def settle(merged: Merged, folder: Folder) -> None:
    """Check that ranks agree in what they must, and keep one rank's buffers.

    Raises:
        CheckpointMismatchError: A parameter is missing on a rank, or optimizers are not the same.
    """
    # Without what is kept by rank: that is what ranks need not agree in.
    common = {key: entry for key, entry in merged.entries.items() if entry_path(entry)[0] != BY_RANK}
    for part in find_parts(common):
        for key in part.keys if part.kind != "other" else ():
            state = merged.partial.get(key)
            if state is not None:
                what = f"`{key}` is in the files of other ranks, and not in `{state.file}`"
                raise ranks_mismatch(folder, what)
            if key not in merged.differing:
                continue
            # Only buffers may differ: FSDP1 leaves them to each rank, and keeps all else alike.
            if part.kind == "optimizer" or isinstance(merged.entries[key], BytesEntry):
                raise ranks_mismatch(folder, f"`{key}` is not the same in the files of all ranks")
            for name in merged.differing.pop(key):
                del merged.entries[name]
            merged.chosen.append(key)
        if part.kind == "model":
            _check_chosen(merged, part, folder)


def _check_chosen(merged: Merged, part: Part, folder: Folder) -> None:
    """Refuse to take one rank's weights for those of all: only buffers differ between ranks of FSDP."""
    whole = [k for k in part.keys if isinstance(e := merged.entries[k], TensorEntry) and e.is_float]
    differing = [key for key in merged.chosen if key in set(whole)]
    if len(differing) * 2 > len(whole):
        what = f"{len(differing)} of {len(whole)} tensors of `{part.name}`, such as `{differing[0]}`, are"
        if any(map(is_fsdp1s, differing)):
            msg = (
                f"The ranks' files in {folder.url!r} cannot be put together: {what} "
                f"{FLAT_PIECES}. {FLAT_PIECES_HINT}"
            )
            raise CheckpointMismatchError(msg, path=folder.url)
        raise ranks_mismatch(
            folder,
            f"{what} whole in each file and differ, and nothing says that they are parts of one. They are of "
            "several steps, or slices that tensor parallelism made, which only the model's classes can put "
            "together",
        )


def merge_findings(merged: Merged, files: str, ranks: int) -> Iterator[Finding]:
    """Say what became of what ranks saved."""
    if merged.sharded:
        text = f"{merged.sharded} tensors were put together from the parts of {ranks} ranks."
        yield make_finding("FM235", files, text)
    if merged.chosen:
        text = f"{_some(merged.chosen)}. That of the lowest rank is kept."
        yield make_finding("FM236", merged.chosen[0], text)
    if merged.differing:
        keys = list(merged.differing)
        text = f"{_some(keys)}. Those of other ranks are under `{BY_RANK}`."
        yield make_finding("FM237", keys[0], text)


def _some(keys: Sequence[str]) -> str:
    return f"`{keys[0]}`" if len(keys) == 1 else f"{len(keys)} of them, such as `{keys[0]}`"
