"""Flat parameters: from the elements that each rank has of them to whole tensors.

``LOCAL_STATE_DICT`` saves a unit's flat parameter as a ShardedTensor of one dimension, and a plain
``optimizer.state_dict()`` under FSDP1 holds each rank's own elements under a number. Names, shapes and places
come from the model and the FSDP1 arguments (:class:`ModelOutline`), or from the files where a framework saved
them beside (OLMo). What is computed is held against every stored size.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.formats.dcp_items import place_tensor
from fsdp_migrate.checkpoint_convert.formats.sharded_values import LocalShards, ShardedValue, local_shards
from fsdp_migrate.checkpoint_convert.manifest.boxes import tiling_problem
from fsdp_migrate.checkpoint_convert.manifest.dtypes import DTYPES
from fsdp_migrate.checkpoint_convert.manifest.flat_geometry import FlatGeometry, FlatSlice, flat_boxes
from fsdp_migrate.checkpoint_convert.manifest.keys import Path, join_path, strip_wrappers
from fsdp_migrate.checkpoint_convert.manifest.manifest import Chunk, RawElements, Stored, TensorEntry
from fsdp_migrate.checkpoint_convert.sources.rank_merge import hold_same, replicas_differ
from fsdp_migrate.errors import CheckpointMismatchError
from fsdp_migrate.findings import counted


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fsdp_migrate.checkpoint_convert.formats.torch_values import TensorValue
    from fsdp_migrate.checkpoint_convert.manifest.boxes import Box
    from fsdp_migrate.checkpoint_convert.sources.rank_merge import RankState
    from fsdp_migrate.checkpoint_convert.storage.folders import Folder


FLAT_KEY: Final = re.compile(r"(^|\.)_?flat_param(_\d+)?$")


@dataclass(frozen=True)
class RankTensor:
    """A tensor of one dimension that a rank holds."""

    state: RankState
    value: TensorValue


class Replicas:
    """Chunks that several ranks hold, to be compared once it is known how ranks divided the parameters."""

    def __init__(self) -> None:
        self._pairs: list[tuple[str, str, Chunk, Chunk]] = []

    def note(self, key: str, dtype: str, first: Chunk, other: Chunk) -> None:
        """Take note of a chunk of which another rank holds the same elements."""
        self._pairs.append((key, dtype, first, other))

    def check(self, folder: Folder) -> None:
        """Compare them: of replicas that differ no one is right, and only the first is converted.

        Raises:
            CheckpointMismatchError: Some differ.
        """
        for key, dtype, first, other in self._pairs:
            if not hold_same(folder, key, dtype, first.sizes, first.stored, other.stored):
                files = first.stored.file, other.stored.file
                raise replicas_differ(folder, key, (first.offsets, first.sizes), *files)


@dataclass
class FlatParts:
    """What of ranks' states is flat.

    Attributes:
        units: By the key of a flat parameter, what each rank says of it.
    """

    units: dict[str, list[tuple[RankState, LocalShards]]] = field(default_factory=dict)


def find_flat(states: Sequence[RankState], folder: Folder) -> FlatParts:
    """Return the flat parameters among what ranks saved.

    Raises:
        CheckpointFormatError: A rank contradicts itself.
    """
    parts = FlatParts()
    for state in states:
        for key, (_, leaf) in state.leaves.items():
            if FLAT_KEY.search(key) and isinstance(leaf, ShardedValue):
                where = f"`{key}` in '{folder.url}/{state.file}'"
                parts.units.setdefault(key, []).append((state, local_shards(leaf, where=where)))
    return parts


def unit_name(key: str) -> str:
    """Return the name of the module whose flat parameter has this key.

    Example:
        >>> unit_name("blocks.0._fsdp_wrapped_module._flat_param"), unit_name("_flat_param")
        ('blocks.0', '')
    """
    return strip_wrappers(FLAT_KEY.sub("", key))


def flat_model(
    parts: FlatParts,
    geometry: FlatGeometry,
    prefix: Path,
    aliases: Mapping[str, str],
    folder: Folder,
    replicas: Replicas,
) -> dict[str, TensorEntry]:
    """Return the parameters that lie in flat parameters, whole.

    Args:
        parts: The flat parameters.
        geometry: Who holds what.
        prefix: The path under which they stand.
        aliases: The further names of tied parameters.
        folder: Where the files are.
        replicas: Takes what ranks hold a second time.

    Raises:
        CheckpointMismatchError: The stored sizes are not those that were computed.
    """
    entries: dict[str, TensorEntry] = {}
    units = {unit_name(join_path(path_below(key, prefix))): holders for key, holders in parts.units.items()}
    _check_units(units, geometry, folder)
    for unit, names in geometry.units.items():
        tensors: dict[int, RankTensor] = {}
        for state, shards in units.get(unit, ()):
            _check_shard(unit, state, shards, geometry, folder)
            if shards.tensors:
                tensors[state.rank] = RankTensor(state, shards.tensors[0])
        for name in names:
            entry = flat_tensor((*prefix, name), name, tensors, geometry, folder, replicas)
            entries[entry.key] = entry
    for alias, name in aliases.items():
        first = entries.get(join_path((*prefix, name)))
        if first is not None:
            path = (*prefix, alias)
            key = join_path(path)
            entries[key] = TensorEntry(key, path, first.dtype, first.shape, first.chunks)
    return entries


def path_below(key: str, prefix: Path) -> Path:
    """Return a key without what a prefix puts before it."""
    start = join_path(prefix)
    return (key[len(start) + 1 :] if start else key,)


def _check_units(
    units: Mapping[str, Sequence[tuple[RankState, LocalShards]]], geometry: FlatGeometry, folder: Folder
) -> None:
    absent = sorted(set(geometry.units) - set(units))
    unknown = sorted(set(units) - set(geometry.units))
    if absent or unknown:
        what = (
            f"the files have no flat parameter of the unit `{absent[0] or '(root)'}`"
            if absent
            else f"`{unknown[0] or '(root)'}` is a flat parameter in the files, and no unit of the model"
        )
        raise mismatch(
            folder,
            f"the files hold {counted(len(units), 'flat parameter')}, the model and its FSDP1 arguments give "
            f"{counted(len(geometry.units), 'unit')}: {what}",
        )


def _check_shard(
    unit: str, state: RankState, shards: LocalShards, geometry: FlatGeometry, folder: Folder
) -> None:
    total = geometry.totals[unit]
    if shards.shape != (total,):
        raise mismatch(
            folder,
            f"the flat parameter of `{unit or '(root)'}` has {shards.shape} elements in `{state.file}`, and "
            f"{total} were computed",
        )
    start = geometry.shard_start(unit, state.rank)
    for offsets, _ in shards.boxes:
        if offsets != (start,):
            raise mismatch(
                folder,
                f"the part of `{unit or '(root)'}` in `{state.file}` starts at {offsets}, expected {start}",
            )


def flat_tensor(
    path: Path,
    name: str,
    tensors: Mapping[int, RankTensor],
    geometry: FlatGeometry,
    folder: Folder,
    replicas: Replicas,
) -> TensorEntry:
    """Return a parameter, or something of its shape, that ranks hold the elements of.

    Args:
        path: Its path.
        name: The parameter.
        tensors: What each rank holds.
        geometry: Which elements that is.
        folder: Where the files are.
        replicas: Takes what ranks hold a second time.

    Raises:
        CheckpointMismatchError: A rank holds fewer elements, or another type, or elements are missing.
    """
    shape = geometry.shapes[name]
    key = join_path(path)
    chunks: dict[Box, Chunk] = {}
    dtypes = {tensor.value.dtype for tensor in tensors.values()}
    if len(dtypes) > 1:
        raise mismatch(folder, f"`{key}` is of the types {', '.join(sorted(dtypes))} on different ranks")
    for rank, piece in geometry.slices[name].items():
        tensor = tensors.get(rank)
        if tensor is None:
            # Ranks beyond the first group hold replicas: without theirs nothing is missing.
            if rank < geometry.ways or not tensors:
                raise mismatch(
                    folder,
                    f"rank {rank} should hold {counted(piece.numel, 'element')} of `{key}`, and has none",
                )
            continue
        for chunk in _chunks(key, shape, piece, tensor, folder):
            kept = chunks.setdefault((chunk.offsets, chunk.sizes), chunk)
            if kept is not chunk:
                replicas.note(key, tensor.value.dtype, kept, chunk)
    if math.prod(shape) == 0 and tensors:
        first = next(iter(tensors.values()))
        stored = Stored(first.state.file, 0, 0, RawElements())
        chunks = {((0,) * len(shape), shape): Chunk((0,) * len(shape), shape, stored)}
    problem = tiling_problem(shape, list(chunks)) if dtypes else "no rank holds any of it"
    if problem is not None:
        raise mismatch(folder, f"`{key}` of shape {list(shape)}: {problem}")
    return TensorEntry(key, path, dtypes.pop(), shape, tuple(chunks[box] for box in sorted(chunks)))


def _chunks(
    key: str, shape: tuple[int, ...], piece: FlatSlice, tensor: RankTensor, folder: Folder
) -> list[Chunk]:
    value = tensor.value
    where = f"`{key}` in '{folder.url}/{tensor.state.file}'"
    if len(value.shape) != 1 or value.shape[0] < piece.offset + piece.numel:
        raise mismatch(
            folder,
            f"`{tensor.state.file}` should hold {counted(piece.numel, 'element')} of `{key}` from "
            f"{piece.offset} on, and has a tensor of shape {list(value.shape)}",
        )
    stored = place_tensor(value, where=where)
    if stored.raw is None or stored.raw.strides is not None:
        raise mismatch(folder, f"the elements of `{key}` do not follow each other in `{tensor.state.file}`")
    itemsize = DTYPES[value.dtype].itemsize
    found: list[Chunk] = []
    for box, before in flat_boxes(shape, piece.start, piece.numel):
        begin = stored.offset + (piece.offset + before) * itemsize
        raw = RawElements(record=stored.raw.record)
        place = Stored(stored.file, begin, math.prod(box[1]) * itemsize, raw)
        found.append(Chunk(*box, place))
    return found


def mismatch(folder: Folder, what: str) -> CheckpointMismatchError:
    """Return the error for what was computed and what is stored not being the same."""
    msg = (
        f"Flat parameters in {folder.url!r} are not those of this model and these FSDP1 arguments: {what}. "
        "Give the model and the arguments of the run that saved it (wrap policy, use_orig_params, mixed "
        "precision, ignored modules), and the files of all of its ranks."
    )
    return CheckpointMismatchError(msg, path=folder.url)
