"""``named_full_tensors``: the whole tensors of a sharded model one after the other, a bucket at a time."""

from __future__ import annotations

import difflib
import math
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from fsdp_migrate.arguments import NOTHING, SEVERAL, check_arguments, instance_of, whole_number_from
from fsdp_migrate.errors import ModelError, ModelStateError
from fsdp_migrate.findings import listed
from fsdp_migrate.runtime.clean_names import clean_parameter_name
from fsdp_migrate.runtime.sharded import gather, local_of, show_shards
from fsdp_migrate.runtime.state_dicts import saved_values
from fsdp_migrate.sharding.consensus import exchange, together
from fsdp_migrate.torch_compat.device_meshes import sharding_steps
from fsdp_migrate.torch_compat.packed_weights import is_packed


if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence

    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from fsdp_migrate.sharding.consensus import Groups


_ALIGNMENT = 16
"""Bytes: tensors of every dtype can begin at a multiple of it."""


def named_full_tensors(
    model: nn.Module,
    names: Iterable[str] | None = None,
    *,
    bucket_bytes: int = 512 * 1024**2,
    dtype: torch.dtype | None = None,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the whole tensors of a sharded model by name, to be sent to an inference engine.

    The names and values are those of ``state_dict()`` of the model on one process, in its order: parameters,
    frozen ones too, and buffers. A tied parameter is gathered once and yielded under each of its names, one
    directly after the other, as one tensor. Extra states that are no tensors are left out. Shards of a bucket
    are gathered together, over each dimension of their mesh that they are cut along, and over no replicas.

    Beside the model there are at most the bucket, this rank's part of it, and the tensor that is yielded (a
    tensor larger than ``bucket_bytes`` is a bucket by itself, and is there once), whatever you keep aside.
    Tensors are on the mesh's device, also where shards are on the host, and yours: they share no memory with
    the model. Plain tensors are copied as this rank has them, where they are.

    All ranks call it and go through all of it, in the same order. What fails on one rank is an error on all.
    So is a loop that ends earlier on one rank than on others (``break``, an exception): the others get an
    error that names it when they come to the next bucket. An iterator that you keep in a variable ends with
    its ``close()``. Between steps; a step in the midst would mix old weights and new ones.

    Args:
        model: The model, between steps; also in :func:`~fsdp_migrate.runtime.offloaded`.
        names: Only these, in the model's order. None: all.
        bucket_bytes: How many bytes of whole tensors are gathered at once.
        dtype: The dtype of floating-point tensors; they are cast before they are sent. None: their own.

    Returns:
        An iterator over names and tensors, the same names on every rank of a mesh.

    Raises:
        ModelError: A name is nothing in the model, the model is on the meta device, or ranks ask for
            different tensors; on every rank, at the call.
        ModelStateError: A forward or backward is under way; or another rank has stopped.

    Example:
        >>> model = torch.nn.Linear(4, 2)
        >>> [(name, tuple(tensor.shape)) for name, tensor in named_full_tensors(model)]
        [('weight', (2, 4)), ('bias', (2,))]
    """
    check_arguments(SEVERAL | NOTHING, names=names)
    check_arguments(whole_number_from(1), bucket_bytes=bucket_bytes)
    check_arguments(instance_of(torch.dtype) | NOTHING, dtype=dtype)
    show_shards(model, "named_full_tensors")
    groups = _groups(model)
    wanted: list[_Entry] = []
    if groups:
        where = "cannot give its tensors, so no rank does"
        together(lambda: wanted.extend(_wanted(model, names, dtype)), groups, where)
        _check_alike(wanted, bucket_bytes, groups)
    else:
        wanted += _wanted(model, names, dtype)
    stream = _stream(_buckets(wanted, bucket_bytes), groups)
    next(stream)  # from here on an iterator that is dropped tells the others
    return cast("Iterator[tuple[str, torch.Tensor]]", stream)


@dataclass
class _Entry:
    """A tensor of the model, under all names that are asked for, and how it was cut."""

    names: list[str]
    value: torch.Tensor
    dtype: torch.dtype
    steps: list[tuple[int, int]] | None  # None: torch gathers it

    @property
    def num_bytes(self) -> int:
        return self.value.numel() * self.dtype.itemsize

    @property
    def mesh(self) -> DeviceMesh:
        return cast("DTensor", self.value).device_mesh


def _entries(model: nn.Module, dtype: torch.dtype | None) -> list[_Entry]:
    found: dict[str, _Entry] = {}
    packed = {clean_parameter_name(name) for name, each in model.named_parameters() if is_packed(each)}
    for name, first, value in saved_values(model):
        if first in found:
            found[first].names.append(name)
        elif isinstance(value, torch.Tensor):
            casts = dtype is not None and value.is_floating_point() and not _is_part(first, packed)
            own = dtype if casts and dtype is not None else value.dtype
            found[first] = _Entry([name], value, own, _steps(value))
    return list(found.values())


def _is_part(name: str, packed: set[str]) -> bool:
    """Tell whether a tensor is a weight that bitsandbytes has packed, or one of its scales."""
    parts = name.split(".")
    return bool(packed) and any(".".join(parts[:end]) in packed for end in range(1, len(parts) + 1))


def _steps(value: torch.Tensor) -> list[tuple[int, int]] | None:
    """Return the cuts that made this rank's shard, those of one rank left out; None where it has others."""
    if not isinstance(value, DTensor):
        return []
    mesh = value.device_mesh
    steps = sharding_steps(value.placements, [mesh.size(dim) for dim in range(mesh.ndim)])
    local = local_of(value)
    if steps is None or type(local) is not torch.Tensor:
        return None
    steps = [(index, dim) for index, dim in steps if mesh.size(index) > 1]
    return steps if _sizes(value, steps)[-1] == local.shape else None


def _sizes(value: DTensor, steps: Sequence[tuple[int, int]]) -> list[torch.Size]:
    """Return the sizes of what is on this rank before the first cut, and after each."""
    mesh, sizes = value.device_mesh, [value.size()]
    for index, dim in steps:
        size = list(sizes[-1])
        size[dim] = _part(size[dim], mesh.size(index), mesh.get_local_rank(index))
        sizes.append(torch.Size(size))
    return sizes


def _part(size: int, num_parts: int, index: int) -> int:
    """Return how many rows a part has: as ``torch.chunk`` cuts, with empty parts at the end."""
    rows = -(-size // num_parts)
    return max(0, min(rows, size - index * rows))


def _groups(model: nn.Module) -> Groups:
    """Return the groups of all meshes, those of the largest last: its ranks then know of each other."""
    meshes = dict.fromkeys(param.device_mesh for param in model.parameters() if isinstance(param, DTensor))
    ordered = sorted(meshes, key=lambda mesh: mesh.size())
    return list(dict.fromkeys(mesh.get_group(dim) for mesh in ordered for dim in range(mesh.ndim)))


def _wanted(model: nn.Module, names: Iterable[str] | None, dtype: torch.dtype | None) -> list[_Entry]:
    meta = next((name for name, param in model.named_parameters() if param.is_meta), None)
    if meta is not None:  # torch's state dict of such a model is none
        msg = f"`{meta}` is on the meta device and has no values. Give the model memory and load it first."
        raise ModelError(msg, fqn=meta)
    entries = _entries(model, dtype)
    known = [name for entry in entries for name in entry.names]
    asked = set(known) if names is None else set(names)
    strangers = sorted(map(str, asked.difference(known)))
    if strangers:
        near = difflib.get_close_matches(strangers[0], known, 1)
        hint = f" Did you mean `{near[0]}`?" if near else ""
        texts = listed([f"`{name}`" for name in strangers], 5)
        msg = f"`names` holds {texts}, which is no tensor of the model's state dict.{hint}"
        raise ModelError(msg, fqn=strangers[0])
    chosen = []
    for entry in entries:
        entry.names = [name for name in entry.names if name in asked]
        chosen += [entry] if entry.names else []
    return chosen


def _check_alike(entries: Sequence[_Entry], bucket_bytes: int, groups: Groups) -> None:
    """Check that all ranks are about to gather the same, and agree on what torch gathers."""
    own = [(entry.names, tuple(entry.value.shape), str(entry.dtype)) for entry in entries]
    irregular = {entry.names[0] for entry in entries if entry.steps is None}
    said = exchange((dist.get_rank(), bucket_bytes, own, irregular), groups)
    for rank, *theirs, _ in said:
        if theirs != list(said[0][1:3]):
            what = _difference(said[0][1:3], theirs)
            msg = (
                f"Ranks {said[0][0]} and {rank} called `named_full_tensors` with different models or "
                f"arguments: {what}. They would wait for each other. Pass the same on every rank."
            )
            raise ModelError(msg)
    # What one rank cannot put together itself, torch gathers on all of them: both are collectives, and they
    # are not the same.
    for entry in entries:
        if any(entry.names[0] in theirs for *_, theirs in said):
            entry.steps = None


def _difference(first: Sequence[Any], other: Sequence[Any]) -> str:
    """Say in what two ranks' buckets or tensors differ."""
    if first[0] != other[0]:
        return f"`bucket_bytes` of {first[0]:,} and {other[0]:,}"
    for pair in zip(first[1], other[1], strict=False):
        if pair[0] != pair[1]:
            return " and ".join(map(_told, pair))
    return f"{len(first[1])} and {len(other[1])} tensors"


def _told(entry: tuple[list[str], tuple[int, ...], str]) -> str:
    names, shape, dtype = entry
    return f"`{names[0]}` of shape {list(shape)}, {dtype.removeprefix('torch.')}"


def _buckets(entries: Sequence[_Entry], bucket_bytes: int) -> list[list[_Entry]]:
    """Cut the tensors into buckets, in their order; one that is too large is one by itself."""
    buckets: list[list[_Entry]] = []
    held = 0
    for entry in entries:
        if not buckets or held + entry.num_bytes > bucket_bytes:
            buckets.append([])
            held = 0
        buckets[-1].append(entry)
        held += entry.num_bytes
    return buckets


def _stream(
    buckets: list[list[_Entry]], groups: Groups
) -> Generator[tuple[str, torch.Tensor] | None, None, None]:
    left, waits = len(buckets), True
    try:
        yield None
        for bucket in buckets:
            left, waits = left - 1, False
            gathers = _agreed(bucket, groups)
            for each in gathers:
                each.run()
                del each
            waits = True
            yield from _given(bucket, gathers)
    finally:
        # Left in the midst: the others learn of it when they come to the next bucket.
        if waits and left and groups and dist.is_initialized():
            # Its own error is meant for the others, and these may be gone.
            with suppress(RuntimeError):
                together(_stop, groups, "", ModelStateError)


def _agreed(bucket: Sequence[_Entry], groups: Groups) -> list[_Gather]:
    """Make the next bucket ready, if every rank goes on to it and has the memory."""
    if not groups:
        return []
    found: list[_Gather] = []
    where = "cannot go on with `named_full_tensors`, so no rank does"
    together(lambda: found.extend(_packed(bucket)), groups, where, ModelStateError)
    return found


def _given(bucket: Sequence[_Entry], gathers: list[_Gather]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield a bucket's tensors; each is put together when it is asked for."""
    by_entry = {id(entry): each for each in gathers for entry in each.entries}
    # Nothing else may hold their buffers: a bucket is to be gone when its last tensor has been asked for.
    gathers.clear()
    for entry in bucket:
        gathered = by_entry.pop(id(entry), None)
        whole = _copied(entry) if gathered is None else gathered.whole(entry)
        del gathered
        for name in entry.names:
            yield name, whole
        del whole


def _stop() -> None:
    msg = "its loop over the tensors has ended before the last of them. Let all ranks go through all of them."
    raise ModelStateError(msg)


def _copied(entry: _Entry) -> torch.Tensor:
    """Return the whole of what is not cut, or of what torch alone can put together."""
    if entry.steps is None:
        return gather(entry.value).to(entry.dtype)
    local = local_of(entry.value)
    device = entry.mesh.device_type if isinstance(entry.value, DTensor) else local.device
    return local.to(device, entry.dtype, copy=True)


def _packed(bucket: Sequence[_Entry]) -> list[_Gather]:
    """Prepare a bucket's collectives: one for those that were cut along the same dimensions of a mesh."""
    alike: dict[Any, list[_Entry]] = {}
    for entry in bucket:
        if entry.steps:
            over = tuple(index for index, _ in entry.steps)
            alike.setdefault((entry.mesh, over), []).append(entry)
    return [_Gather(entries) for entries in alike.values()]


class _Gather:
    """Tensors that are put together by the same collectives, the last cut first."""

    def __init__(self, entries: list[_Entry]) -> None:
        self.entries = entries
        self._sizes = {
            id(entry): _sizes(cast("DTensor", entry.value), entry.steps or ()) for entry in entries
        }
        self._step = len(entries[0].steps or ()) - 1
        self._allocate()
        for entry in entries:
            self._put(entry, local_of(entry.value))

    def _allocate(self) -> None:
        """Make room for the next collective: this rank's parts, and those of all."""
        mesh, index = self.entries[0].mesh, self._index(self.entries[0])
        self._num_parts = mesh.size(index)
        self._group = mesh.get_group(index)
        self._offsets: dict[int, int] = {}
        end = 0
        for entry in self.entries:
            self._offsets[id(entry)] = end
            end += math.prod(self._room(entry)) * entry.dtype.itemsize
            # Not where there is one alone: its parts then lie as its rows do, and `whole` needs no copy.
            if len(self.entries) > 1:
                end += -end % _ALIGNMENT
        self._stride = end
        # Bytes, so that tensors of several dtypes go in one collective.
        self._parts: torch.Tensor | None = torch.empty(end, dtype=torch.uint8, device=mesh.device_type)
        self._wholes = self._parts.new_empty(self._num_parts * end)

    def _index(self, entry: _Entry) -> int:
        return (entry.steps or ())[self._step][0]

    def _dim(self, entry: _Entry) -> int:
        return (entry.steps or ())[self._step][1]

    def _room(self, entry: _Entry) -> list[int]:
        """Return the sizes of the largest part of a tensor."""
        sizes = list(self._sizes[id(entry)][self._step])
        sizes[self._dim(entry)] = _part(sizes[self._dim(entry)], self._num_parts, 0)
        return sizes

    def _view(self, entry: _Entry, buffer: torch.Tensor, index: int = 0) -> torch.Tensor:
        room = self._room(entry)
        start = self._offsets[id(entry)] + index * self._stride
        return buffer[start : start + math.prod(room) * entry.dtype.itemsize].view(entry.dtype).view(room)

    def _put(self, entry: _Entry, part: torch.Tensor) -> None:
        dim = self._dim(entry)
        assert self._parts is not None
        self._view(entry, self._parts).narrow(dim, 0, part.size(dim)).copy_(part)  # casts, and moves

    def run(self) -> None:
        """Communicate; what was cut several times is put together but for the first cut."""
        while True:
            if self._stride:
                dist.all_gather_into_tensor(self._wholes, self._parts, group=self._group)
            self._parts = None  # it is in the gathered ones, which are the peak
            if self._step == 0:
                return
            wholes = [self.whole(entry) for entry in self.entries]
            self._step -= 1
            self._allocate()
            for entry in self.entries:
                self._put(entry, wholes.pop(0))

    def whole(self, entry: _Entry) -> torch.Tensor:
        """Return a tensor as it was before the cut that the last collective undid, in memory of its own."""
        dim, size = self._dim(entry), self._sizes[id(entry)][self._step]
        # Rows of one tensor alone stand as they belong: no copy, and a large tensor is held once.
        if len(self.entries) == 1 and dim == 0:
            return self._wholes.view(entry.dtype)[: size.numel()].view(size)
        parts = [
            self._view(entry, self._wholes, index).narrow(dim, 0, _part(size[dim], self._num_parts, index))
            for index in range(self._num_parts)
        ]
        return torch.cat(parts, dim)
