"""From the words of an :class:`FSDP2Config` to torch's objects: dtypes, policies, devices, meshes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    MixedPrecisionPolicy as TorchMixedPrecisionPolicy,
    OffloadPolicy as TorchOffloadPolicy,
)

from fsdp_migrate.errors import ConfigError, ProcessGroupError
from fsdp_migrate.torch_compat import device_meshes, devices, process_groups


if TYPE_CHECKING:
    from fsdp_migrate.config import FSDP2Config, MeshKind, MixedPrecisionPolicy, OffloadPolicy


REPLICATE, SHARD = "dp_replicate", "dp_shard"
"""Names of the mesh dimensions, as torchtitan and Accelerate name them."""


def resolve_dtype(name: str | None) -> torch.dtype | None:
    """Return the dtype of that name.

    Example:
        >>> resolve_dtype("bfloat16")
        torch.bfloat16
    """
    if name is None:
        return None
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        msg = f"`torch.{name}` is no dtype."
        raise ConfigError(msg)
    return dtype


def resolve_mp_policy(policy: MixedPrecisionPolicy) -> TorchMixedPrecisionPolicy:
    """Return torch's policy with the dtypes of these names."""
    return TorchMixedPrecisionPolicy(
        param_dtype=resolve_dtype(policy.param_dtype),
        reduce_dtype=resolve_dtype(policy.reduce_dtype),
        output_dtype=resolve_dtype(policy.output_dtype),
        cast_forward_inputs=policy.cast_forward_inputs,
    )


def resolve_offload_policy(policy: OffloadPolicy | None) -> TorchOffloadPolicy:
    """Return torch's policy; memory is pinned where there is an accelerator, unless the config says."""
    if policy is None:
        return TorchOffloadPolicy()
    # torch's own default pins, which fails where there is no accelerator.
    pin = policy.pin_memory
    return CPUOffloadPolicy(pin_memory=devices.accelerator_type() is not None if pin is None else pin)


def resolve_device_type(config: FSDP2Config) -> str:
    """Return the type of the device that FSDP1 would have used: that of ``device_id``, or the accelerator.

    Raises:
        ConfigError: ``device_id`` is no device.
    """
    if config.device_mesh is not None:
        return str(config.device_mesh.device_type)
    if isinstance(config.device_id, str):
        try:
            return torch.device(config.device_id).type
        except (RuntimeError, ValueError) as error:  # ValueError: a text that is no UTF-8
            msg = f"`device_id` is {config.device_id!r}; expected a device such as 0 or 'cuda:0'."
            raise ConfigError(msg, field="device_id") from error
    return devices.accelerator_type() or "cpu"


def resolve_device_index(config: FSDP2Config) -> int | None:
    """Return the index that ``device_id`` names, if it names one.

    Example:
        >>> from fsdp_migrate.config import FSDP2Config
        >>> [resolve_device_index(FSDP2Config(device_id=device)) for device in (3, "cuda:1", "cpu", None)]
        [3, 1, None, None]
    """
    if isinstance(config.device_id, str):
        return torch.device(config.device_id).index
    return config.device_id


def check_device(config: FSDP2Config) -> None:
    """Check that this process has the device that the config asks for.

    Raises:
        ConfigError: It has none of that type, or not as many.
    """
    device_type, index = resolve_device_type(config), resolve_device_index(config)
    count = devices.device_count(device_type)
    if device_type != "cpu" and count <= (index or 0):
        wanted = device_type if index is None else f"{device_type}:{index}"
        found = (
            f"{count} `{device_type}` device{'s' * (count != 1)}" if count else f"no `{device_type}` device"
        )
        msg = (
            f"The model is to be sharded on `{wanted}`, but this process has {found} "
            f"(torch {torch.__version__}). Give `device_id` a device that it has, or 'cpu' to run without an "
            "accelerator."
        )
        raise ConfigError(msg, field="device_id")


def resolve_device(mesh: DeviceMesh) -> torch.device:
    """Return the device on which FSDP2 puts what it shards on the mesh: the current one of its type."""
    if mesh.device_type == "cpu":
        return torch.device("cpu")
    return torch.device(mesh.device_type, torch.get_device_module(mesh.device_type).current_device())


def resolve_devices_per_node(device_type: str) -> int:
    """Return the number of ranks that FSDP1 takes to be one node: its devices, or 1 on the CPU.

    Raises:
        ConfigError: This machine has no device of that type.
    """
    count = devices.device_count(device_type)
    if count == 0:
        msg = (
            f"HYBRID_SHARD makes one shard group of each node's `{device_type}` devices, and this machine "
            "has none. Give `devices_per_node`, or a 2-D mesh."
        )
        raise ConfigError(msg, field="devices_per_node")
    return count


def resolve_mesh_shape(kind: MeshKind, world_size: int, per_node: int) -> tuple[int, int]:
    """Return the number of replicas and of shards.

    Raises:
        ProcessGroupError: Nodes of that many devices do not divide the ranks.

    Example:
        >>> resolve_mesh_shape("hybrid", 16, 8), resolve_mesh_shape("replicate", 4, 8)
        ((2, 8), (4, 1))
    """
    if kind == "shard":
        return 1, world_size
    if kind == "replicate":
        return world_size, 1
    if world_size % per_node:
        msg = (
            f"HYBRID_SHARD makes one shard group of each node, but {world_size} ranks are no multiple of "
            f"{per_node} devices. Pass a 2-D `device_mesh` with the groups that you want."
        )
        raise ProcessGroupError(msg)
    return world_size // per_node, per_node


def make_mesh(config: FSDP2Config, mesh: DeviceMesh | None = None) -> DeviceMesh:
    """Make the mesh that the units are sharded on; a collective call of all ranks.

    ``mesh`` overrides the config's. Groups that exist are used; new ones are made only for dimensions that
    have none. The result has one dimension (shard), or two (replicate, shard) with names.

    Raises:
        ProcessGroupError: The ranks do not divide into nodes.
    """
    given = mesh if mesh is not None else config.device_mesh
    if given is not None:
        return _mesh_of_mesh(config.mesh, given)
    device_type = resolve_device_type(config)
    if config.process_group is not None:
        return _mesh_of_groups(config.mesh, config.process_group, device_type)
    per_node = resolve_devices_per_node(device_type) if config.mesh == "hybrid" else 1
    replicas, shards = resolve_mesh_shape(config.mesh, dist.get_world_size(), per_node)
    if config.mesh == "shard":
        return init_device_mesh(device_type, (shards,), mesh_dim_names=(SHARD,))
    shape, names = (replicas, shards), (REPLICATE, SHARD)
    return device_meshes.make_mesh(device_type, shape, names, needs_cpu=config.offload_policy is not None)


def _mesh_of_mesh(kind: MeshKind, mesh: DeviceMesh) -> DeviceMesh:
    if kind == "replicate" and mesh.ndim == 1:
        return _replicating_mesh(mesh.get_group(), mesh.device_type)
    # FSDP1 took such a mesh; FSDP2 asserts that two dimensions have names.
    if mesh.ndim == 2 and mesh.mesh_dim_names is None:
        groups = [mesh.get_group(0), mesh.get_group(1)]
        return device_meshes.mesh_of_groups(groups, mesh.device_type, mesh.mesh, (REPLICATE, SHARD))
    return mesh


def _mesh_of_groups(kind: MeshKind, groups: Any, device_type: str) -> DeviceMesh:
    if kind == "replicate":
        return _replicating_mesh(groups, device_type)
    if kind == "shard":
        ranks = torch.tensor(dist.get_process_group_ranks(groups))
        return device_meshes.mesh_of_groups([groups], device_type, ranks, (SHARD,))
    shard_group, replicate_group = groups
    mine = torch.tensor(dist.get_process_group_ranks(shard_group))
    device = torch.device(device_type)
    rows = [torch.empty_like(mine, device=device) for _ in range(dist.get_world_size(replicate_group))]
    # A rank knows the ranks of its own shard group; those of the other rows are told by its replicas.
    dist.all_gather(rows, mine.to(device), group=replicate_group)
    ranks = torch.stack(rows).cpu()
    names = (REPLICATE, SHARD)
    return device_meshes.mesh_of_groups([replicate_group, shard_group], device_type, ranks, names)


def _replicating_mesh(group: dist.ProcessGroup, device_type: str) -> DeviceMesh:
    # NO_SHARD: sharded over one rank, averaged over all. torch's `replicate` on FSDP2 would leave parameters
    # that a step does not use without gradients, where FSDP1 had zeros.
    ranks = torch.tensor(dist.get_process_group_ranks(group)).view(-1, 1)
    groups = [group, process_groups.group_of_this_rank_alone()]
    return device_meshes.mesh_of_groups(groups, device_type, ranks, (REPLICATE, SHARD))
