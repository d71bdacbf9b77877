"""Flat parameters that describe themselves: OLMo's local checkpoints keep torch's own record beside them.

``model/rank{r}.pt`` holds per module and handle ``flat_param.data`` and, as attributes of the same flat
parameter, ``_fqns``, ``_shapes``, ``_shard_numel_padded`` and which elements the rank has: from torch 2.1 on
``_shard_param_infos``, before that ``_shard_indices`` and ``_shard_param_offsets``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fsdp_migrate.checkpoint_convert.formats.torch_values import Record, TensorValue
from fsdp_migrate.checkpoint_convert.manifest.flat_geometry import FlatGeometry, FlatSlice
from fsdp_migrate.checkpoint_convert.manifest.keys import strip_wrappers
from fsdp_migrate.checkpoint_convert.sources.flat_params.tensors import (
    RankTensor,
    Replicas,
    flat_tensor,
    mismatch,
)


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fsdp_migrate.checkpoint_convert.manifest.boxes import Shape
    from fsdp_migrate.checkpoint_convert.manifest.manifest import Entry
    from fsdp_migrate.checkpoint_convert.sources.rank_merge import Leaves, RankState
    from fsdp_migrate.checkpoint_convert.storage.folders import Folder


_DATA: Final = "flat_param.data"
_MODULES: Final = "modules"


@dataclass(frozen=True)
class Described:
    """What ranks' files say of their flat parameters: who holds what, and the whole parameters."""

    geometry: FlatGeometry
    entries: Mapping[str, Entry]
    states: Sequence[RankState]

    def is_of(self, states: Sequence[RankState]) -> bool:
        """Tell whether it was read from these states."""
        return states is self.states

    def without(self, leaves: Leaves) -> Leaves:
        """Return leaves without those that were read."""
        return {key: leaf for key, leaf in leaves.items() if leaf[0][0] != _MODULES}


@dataclass(frozen=True)
class _Piece:
    name: str
    shape: Shape
    held: FlatSlice
    tensor: RankTensor


def read_described(states: Sequence[RankState], folder: Folder) -> Described | None:
    """Read flat parameters that describe themselves, or return None where there are none.

    Raises:
        CheckpointMismatchError: What they say is not what is stored, or ranks contradict each other.
    """
    if not any(path[0] == _MODULES and path[-1] == _DATA for path, _ in states[0].leaves.values()):
        return None
    shapes: dict[str, Shape] = {}
    slices: dict[str, dict[int, FlatSlice]] = {}
    tensors: dict[str, dict[int, RankTensor]] = {}
    for state in states:
        for piece in _pieces(state, folder):
            if shapes.setdefault(piece.name, piece.shape) != piece.shape:
                raise mismatch(folder, f"`{piece.name}` has another shape in `{state.file}`")
            slices.setdefault(piece.name, {})[state.rank] = piece.held
            tensors.setdefault(piece.name, {})[state.rank] = piece.tensor
    geometry = FlatGeometry(shapes, {}, {}, slices, len(states), len(states))
    replicas = Replicas()
    found = {name: flat_tensor((name,), name, tensors[name], geometry, folder, replicas) for name in shapes}
    replicas.check(folder)
    return Described(geometry, {entry.key: entry for entry in found.values()}, states)


def _pieces(state: RankState, folder: Folder) -> Iterator[_Piece]:
    handles: dict[tuple[object, ...], dict[str, object]] = {}
    modules: dict[tuple[object, ...], str] = {}
    # `modules, number, "handles", number, "flat_param.<field>"`, and beside it `modules, number, "name"`.
    for path, leaf in state.leaves.values():
        if path[0] == _MODULES and len(path) == 5:
            handles.setdefault(path[:4], {})[str(path[4]).removeprefix("flat_param.")] = leaf
        elif path[0] == _MODULES and len(path) == 3 and path[2] == "name":
            modules[path[:2]] = strip_wrappers(str(leaf)).removesuffix("_fsdp_wrapped_module")
    try:
        for at, fields in handles.items():
            yield from _handle_pieces(state, modules[at[:2]], fields)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        what = f"`{state.file}` does not describe its flat parameters as torch does ({error!r:.100})"
        raise mismatch(folder, what) from error


def _handle_pieces(state: RankState, module: str, fields: Mapping[str, Any]) -> Iterator[_Piece]:
    data = fields["data"]
    if not isinstance(data, TensorValue) or len(data.shape) != 1:
        raise TypeError("`flat_param.data` is no tensor of one dimension")
    names, shapes = list(fields["_fqns"]), list(fields["_shapes"])
    tensor = RankTensor(state, data)
    for index, held in _held(fields, len(names)):
        name = strip_wrappers(f"{module}.{names[index]}" if module else names[index])
        shape = tuple(shapes[index])
        if not 0 <= held.start <= held.start + held.numel <= math.prod(shape):
            raise ValueError(f"elements {held.start} to {held.start + held.numel} of `{name}`")
        yield _Piece(name, shape, held, tensor)


def _held(fields: Mapping[str, Any], count: int) -> Iterator[tuple[int, FlatSlice]]:
    """Yield the index and the elements of each parameter that the rank has some of."""
    if "_shard_param_infos" in fields:
        for index, info in enumerate(fields["_shard_param_infos"]):
            values: Any = info.arguments if isinstance(info, Record) else info
            # `_ShardParamInfo`: in_shard, offset_in_shard, numel_in_shard, intra_param_start_idx, ...
            if values[0]:
                yield index, FlatSlice(int(values[3]), int(values[2]), int(values[1]))
        return
    # Before torch 2.1: first and last parameter of the shard, and first and last element of each of them.
    first, _ = fields["_shard_indices"]
    offset = 0
    for index, (start, last) in zip(range(first, count), fields["_shard_param_offsets"], strict=False):
        yield index, FlatSlice(int(start), int(last) - int(start) + 1, offset)
        offset += int(last) - int(start) + 1
