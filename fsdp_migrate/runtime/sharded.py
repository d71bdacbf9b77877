"""What stands sharded in an FSDP2 model: its units, and whole tensors out of shards and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Replicate

from fsdp_migrate.errors import ModelError, ModelStateError
from fsdp_migrate.sharding.structure import check_is_module
from fsdp_migrate.torch_compat import tensor_kinds, unit_state


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch.distributed.device_mesh import DeviceMesh


def units_of(model: nn.Module) -> list[FSDPModule]:
    """Return the modules of a model that ``fully_shard`` has made units, the model itself first."""
    check_is_module(model)
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def require_units(model: nn.Module, call: str) -> list[FSDPModule]:
    """Return the model's units.

    Raises:
        ModelError: There are none, so that ``call`` would do nothing.
    """
    units = units_of(model)
    if not units:
        msg = (
            f"`{call}` was called with a {type(model).__name__} in which fully_shard has sharded nothing. "
            "Give it the model that prepare_fully_shard returned."
        )
        raise ModelError(msg)
    return units


def show_shards(model: nn.Module, call: str) -> None:
    """Make every unit's sharded parameters the model's parameters, as they are before a forward.

    A unit that keeps its parameters after a forward (the root does, where no backward follows) would show
    whole ones, and would go on computing with them after the shards have been changed. No communication.

    Raises:
        ModelStateError: A forward or a backward is under way.
    """
    units = units_of(model)
    names = {module: name for name, module in model.named_modules()}
    for unit in units:
        if not unit_state.is_idle(unit):
            name = names[cast("nn.Module", unit)]
            msg = (
                f"`{call}` was called in the middle of a forward or backward: unit `{name or 'the root'}` is "
                "computing. Call it between steps. After an error in a forward, put FSDP2's state back first."
            )
            raise ModelStateError(msg)
    for unit in units:
        unit.reshard()


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a tensor, sharing its memory; all of a plain one. It is no wrapper."""
    with torch.no_grad():
        return tensor_kinds.unwrapped(tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach())


@torch.no_grad()
def without_wrapper(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that shares its memory and does not say how it is gathered; others as they are."""
    if isinstance(tensor, DTensor):
        return _with_shard(tensor, local_of(tensor)) if _is_wrapped(tensor.to_local()) else tensor
    return local_of(tensor) if _is_wrapped(tensor) else tensor


def _is_wrapped(tensor: torch.Tensor) -> bool:
    return tensor_kinds.unwrapped(tensor) is not tensor


def _with_shard(tensor: DTensor, shard: torch.Tensor) -> DTensor:
    """Return a DTensor of the same placement with another shard, or itself with its own."""
    if tensor.to_local() is shard:
        return tensor
    size, stride, placements = tensor.size(), tensor.stride(), tensor.placements
    return DTensor.from_local(
        shard, tensor.device_mesh, placements, run_check=False, shape=size, stride=stride
    )


@torch.no_grad()
def gather(tensor: torch.Tensor) -> torch.Tensor:
    """Return the whole of a tensor, in memory of its own; a collective call of the tensor's mesh.

    It is on the mesh's device, also where the shards are offloaded to the CPU. A plain tensor is copied.
    """
    if not isinstance(tensor, DTensor):
        return local_of(tensor).clone()
    on_mesh = cast("DTensor", tensor.detach())
    mesh, local = on_mesh.device_mesh, local_of(on_mesh)
    if local.device.type != mesh.device_type:  # which a DTensor does not tell whose shard was moved later
        local = local.to(mesh.device_type)
    on_mesh = _with_shard(on_mesh, local)
    whole = on_mesh.full_tensor()
    # Over one rank torch gives the shard itself.
    return whole.clone() if _memory(whole) & _memory(local_of(on_mesh)) else whole


def _memory(tensor: torch.Tensor) -> set[int]:
    """Return where a tensor's numbers lie; those of a wrapper lie in the tensors that it holds."""
    return {part.untyped_storage().data_ptr() for part in tensor_kinds.dense_parts(tensor)}


@torch.no_grad()
def shard_like(whole: torch.Tensor, like: DTensor) -> DTensor:
    """Return a whole tensor, the same on every rank, sharded as another is; without communication."""
    mesh = like.device_mesh
    replicated = DTensor.from_local(
        whole.detach().to(mesh.device_type), mesh, [Replicate()] * mesh.ndim, run_check=False
    )
    return replicated.redistribute(mesh, like.placements)


@torch.no_grad()
def write_back(sharded: torch.Tensor, whole: torch.Tensor) -> None:
    """Copy this rank's part of a whole tensor into its shard, in place."""
    part = shard_like(whole, sharded) if isinstance(sharded, DTensor) else whole
    local_of(sharded).copy_(local_of(part))


def is_first_rank(tensors: Iterable[torch.Tensor]) -> bool:
    """Tell whether this is the lowest of the ranks that share the tensors; rank 0 of all if none do."""
    # A mesh knows this rank's number also where a script has put another group into the place of the world.
    shared = [(_own_rank(mesh), int(mesh.mesh.min())) for mesh in {t.device_mesh for t in _sharded(tensors)}]
    if not shared:
        return dist.get_rank() == 0
    return shared[0][0] == min(lowest for _, lowest in shared)


def is_first_of_its_shards(tensors: Iterable[torch.Tensor]) -> bool:
    """Tell whether this is the lowest of the ranks that together hold what this rank holds a part of.

    Under HYBRID_SHARD there is one in each shard group, under NO_SHARD each rank is one: so FSDP1 understood
    rank 0 in its contexts, where the group that it asked was that of the shards.
    """
    own = {(t.device_mesh, tuple(place.is_replicate() for place in t.placements)) for t in _sharded(tensors)}
    if not own:
        return dist.get_rank() == 0
    lowest = min(_lowest_shard(mesh, replicated) for mesh, replicated in own)
    return _own_rank(next(mesh for mesh, _ in own)) == lowest


def _lowest_shard(mesh: DeviceMesh, replicated: tuple[bool, ...]) -> int:
    """Return the lowest of the ranks that differ from this one only along what is sharded."""
    at = _coordinate(mesh)
    index = tuple(at[dim] if is_replicated else slice(None) for dim, is_replicated in enumerate(replicated))
    return int(mesh.mesh[index].min())


def _own_rank(mesh: DeviceMesh) -> int:
    return int(mesh.mesh[tuple(_coordinate(mesh))])


def _coordinate(mesh: DeviceMesh) -> Sequence[int]:
    at = mesh.get_coordinate()
    assert at is not None  # a rank holds no tensor of a mesh that it is not in
    return at


def _sharded(tensors: Iterable[torch.Tensor]) -> Iterator[DTensor]:
    return (tensor for tensor in tensors if isinstance(tensor, DTensor))
