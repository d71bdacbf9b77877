"""What this package needs to know of torch's meshes and of FSDP2 over another parallelism.

A part of :mod:`fsdp_migrate.torch_compat`, and under its rule: no other file asks which torch this is or
touches its privates. What is read here was checked on 2.6, 2.7, 2.9, 2.13 and 2.15.
"""
# torch does not publish the root of a mesh.

from __future__ import annotations

import importlib
import math
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from fsdp_migrate.torch_compat.cpu_mends import averages_by_sum


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch.distributed.tensor.placement_types import Placement


HAS_UNEVEN_STRIDED = not issubclass(_StridedShard, Shard)
"""Whether FSDP2 can shard unevenly what tensor parallelism has sharded on the same dimension.

Up to 2.8 it refuses; 2.9 gathers wrong values (run: 18 rows over 2 x 2 ranks come back in another order, with
zeros among the gradients). The rewritten placement, which is no ``Shard`` any more, is right (2.13, 2.15).
"""

HAS_ANY_DIM_ORDER = hasattr(DeviceMesh, "_concatenate")
"""Whether the data-parallel dimension may come after the other in the root mesh; before, slicing fails."""

MAX_PARALLEL_DIMS = 2 if hasattr(FSDPModule, "set_custom_all_gather") else 1
"""How many dimensions of other parallelism FSDP2 takes: expert and tensor parallel together since 2.9."""

HAS_GRADIENT_DIVISOR = hasattr(FSDPModule, "set_all_reduce_hook")
"""Whether a unit's gradients can be divided by another number than that of its ranks: since 2.7."""

OPTIONS_OF_ONE_MESH: tuple[str, ...] = (
    () if MAX_PARALLEL_DIMS > 1 else ("fused",) if HAS_GRADIENT_DIVISOR else ("foreach", "fused")
)
"""Kinds of optimizers that do not take DTensors of several meshes (run on 2.6, 2.7, 2.9, 2.13 and 2.15)."""


def meshes_of(parameters: Iterable[torch.Tensor]) -> list[DeviceMesh]:
    """Return the meshes that parameters lie on, by their names, then as they come: in one order on all ranks.

    All ranks must go through the groups in that order. A set has another one in each process, because names
    are hashed with a seed of its own.
    """
    found = dict.fromkeys(param.device_mesh for param in parameters if isinstance(param, DTensor))
    return sorted(found, key=lambda mesh: str(mesh.mesh_dim_names))


def root_mesh(mesh: DeviceMesh) -> DeviceMesh:
    """Return the mesh that a mesh was sliced from, or itself."""
    if hasattr(mesh, "_get_root_mesh"):
        root: DeviceMesh = mesh._get_root_mesh()
    else:
        root = importlib.import_module("torch.distributed.device_mesh")._mesh_resources.get_root_mesh(mesh)
    return root


def have_one_root(mesh: DeviceMesh, other: DeviceMesh) -> bool:
    """Tell whether two named meshes are slices of one root mesh, as FSDP2 needs them.

    Meshes that are equal may have been sliced from different roots, and torch's caches of placements hand out
    the first of them. So where torch itself goes by values, not by roots, it is asked by value too: whether
    the root of one has the other.
    """
    root, other_root = root_mesh(mesh), root_mesh(other)
    if root == other_root:
        return True
    return HAS_ANY_DIM_ORDER and (_has_slice(root, other) or _has_slice(other_root, mesh))


def _has_slice(root: DeviceMesh, mesh: DeviceMesh) -> bool:
    names, dims = root.mesh_dim_names or (), mesh.mesh_dim_names or ()
    positions = [names.index(dim) for dim in dims if dim in names]
    if not positions or len(positions) != len(dims) or positions != sorted(positions):
        return False
    return bool(root[dims] == mesh)


def shard_dim(placement: Placement) -> int | None:
    """Return the dimension that a placement shards, strided or not; None where it shards none."""
    return placement.dim if isinstance(placement, (Shard, _StridedShard)) else None


def sharding_steps(placements: Sequence[Placement], sizes: Sequence[int]) -> list[tuple[int, int]] | None:
    """Return in which order a tensor was cut: pairs of a mesh dimension and the dimension that it cuts.

    Mesh dimensions cut from left to right, but strided ones (FSDP's over tensor parallelism) after those to
    their right. ``sizes`` are those of the mesh. None: placed in a way that cuts do not make.
    """
    whole, strided = [], []
    for index, placement in enumerate(placements):
        dim = shard_dim(placement)
        if dim is None:
            if not placement.is_replicate():
                return None
            continue
        if isinstance(placement, _StridedShard):
            right = [
                size
                for other, size in zip(placements[index + 1 :], sizes[index + 1 :], strict=True)
                if shard_dim(other) == dim and not isinstance(other, _StridedShard)
            ]
            if placement.split_factor != math.prod(right):
                return None
            strided.append((index, dim))
        else:
            whole.append((index, dim))
    return [*whole, *strided]


def sharded_over(dim: int, others: int) -> Placement:
    """Return FSDP2's placement on a dimension that is cut into ``others`` parts already."""
    if others == 1:
        return Shard(dim)
    strided: Placement = _StridedShard(dim, split_factor=others)
    return strided


def set_gradient_divisor(units: Iterable[FSDPModule], mesh: DeviceMesh, divisor: int) -> None:
    """Divide the units' gradients by ``divisor``, not by the number of ranks of the units' own mesh."""
    for unit in units:
        if hasattr(unit, "set_gradient_divide_factor"):
            unit.set_gradient_divide_factor(float(divisor))
            # A divisor alone makes torch ask for PREMUL_SUM: gloo refuses it from 2.9 on, and silently sums
            # up to 2.8.
            if averages_by_sum(mesh):
                unit.set_force_sum_reduction_for_comms(True)
        else:
            # torch 2.7 has no divisor: it averages over the unit's own mesh, and the hook comes after that.
            unit.set_all_reduce_hook(_Scale(mesh.size() / divisor))


class _Scale:
    """Multiplies what a unit has averaged, before it becomes a gradient."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, reduced: torch.Tensor) -> None:
        reduced.mul_(self.factor)


def make_mesh(
    device_type: str, shape: tuple[int, ...], names: tuple[str, ...], *, needs_cpu: bool
) -> DeviceMesh:
    """Make a mesh of all ranks; with ``needs_cpu`` its groups take what lies on the CPU if the world's does.

    A collective call. torch makes the groups of a mesh of two dimensions by splitting the world's where that
    has a ``device_id``, and in torch 2.7 what it splits off has NCCL alone: ``split_group`` registers that
    for ``cuda`` and nothing for the CPU, and still names the backends of both. ``new_group`` makes both.
    """
    world = dist.group.WORLD
    if not needs_cpu or len(shape) == 1 or world is None or world.bound_device_id is None:
        return init_device_mesh(device_type, shape, mesh_dim_names=names)
    ranks = torch.arange(dist.get_world_size()).view(shape)
    own: list[dist.ProcessGroup] = []
    for dim, size in enumerate(shape):
        for row in ranks.movedim(dim, -1).reshape(-1, size).tolist():
            group = dist.new_group(row, group_desc=f"mesh_{names[dim]}")
            if dist.get_rank() in row:
                own.append(group)
    return mesh_of_groups(own, device_type, ranks, names)


def mesh_of_groups(
    groups: list[dist.ProcessGroup], device_type: str, ranks: torch.Tensor, names: tuple[str, ...]
) -> DeviceMesh:
    """Make a mesh of existing process groups, one for each dimension, without making new groups."""
    if len(groups) == 1:
        return DeviceMesh.from_group(groups[0], device_type, mesh_dim_names=names)
    return DeviceMesh.from_group(groups, device_type, mesh=ranks, mesh_dim_names=names)
