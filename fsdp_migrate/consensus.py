"""All ranks shard, or none does: what one rank finds wrong is an error on every rank, not a hang."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from fsdp_migrate.errors import ConfigError, FSDPMigrateError, ModelError


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

    from fsdp_migrate.plan import ShardPlan


@dataclass(frozen=True)
class Opinion:
    """What one rank has to say before sharding: its plan's fingerprint and meta tensors, or its error."""

    rank: int
    fingerprint: str = ""
    num_meta: int = 0
    num_tensors: int = 0
    error: str | None = None


def groups_of(fsdp1_config: Any, mesh: DeviceMesh | None, model: nn.Module) -> list[dist.ProcessGroup | None]:
    """Return the groups over which the ranks that shard together talk; None is all ranks.

    Ranks that another parallelism has joined depend on each other too. The config is looked at as it was
    given: whether it can be read is what the ranks are to agree on.

    Raises:
        ConfigError: This rank is in none of the groups; the others do not wait for it.
    """

    def given(name: str) -> Any:
        is_mapping = isinstance(fsdp1_config, Mapping)
        return fsdp1_config.get(name) if is_mapping else getattr(fsdp1_config, name, None)

    chosen = mesh if mesh is not None else given("device_mesh")
    if isinstance(chosen, DeviceMesh):
        if chosen.get_coordinate() is None:
            raise ConfigError(_not_a_member("mesh", chosen.mesh.flatten().tolist()), field="mesh")
        others = {param.device_mesh for param in model.parameters() if isinstance(param, DTensor)}
        meshes = [chosen, *sorted(others, key=lambda other: str(other.mesh_dim_names))]
        return [each.get_group(dim) for each in meshes for dim in range(each.ndim)]
    groups = given("process_group")
    several = groups if isinstance(groups, (tuple, list)) else [groups]
    # What `dist.new_group` returns to ranks that it was not given.
    if any(group is dist.GroupMember.NON_GROUP_MEMBER for group in several):
        raise ConfigError(_not_a_member("process_group"), field="process_group")
    found: list[dist.ProcessGroup | None] = [g for g in several if isinstance(g, dist.ProcessGroup)]
    return found or [None]


def _not_a_member(field: str, ranks: Sequence[int] = ()) -> str:
    held = f", which holds the ranks {list(ranks)}" if ranks else ""
    return (
        f"Rank {dist.get_rank()} is not in its `{field}`{held}. Call prepare_fully_shard on those ranks "
        "only, or give this rank a group of its own."
    )


def agree_on_plan(
    make: Callable[[], ShardPlan], model: nn.Module, groups: Sequence[dist.ProcessGroup | None]
) -> ShardPlan:
    """Make the plan on every rank, and return it if all ranks made the same.

    Raises:
        Exception: This rank's own error, if it has one: one of ours, or of a policy that the user wrote.
        ModelError: Another rank has an error, the ranks' plans differ, or some ranks' models are on the meta
            device and others' are not, without ``sync_module_states`` from a real rank 0.
    """
    plan: ShardPlan | None = None
    failure: Exception | None = None
    try:
        plan = make()
    except Exception as error:
        failure = error
    opinions = _exchange(_opinion(plan, model, failure), groups)
    if failure is not None:
        raise failure
    failed = [opinion for opinion in opinions if opinion.error is not None]
    if failed:
        msg = f"Rank {failed[0].rank} cannot shard its model, so no rank does: {failed[0].error}"
        raise ModelError(msg)
    if plan is None:
        msg = "There is neither a plan nor an error."
        raise AssertionError(msg)
    _check_same_plan(opinions)
    _check_meta(opinions, broadcasts=plan.config.broadcast_from_rank0)
    return plan


def _opinion(plan: ShardPlan | None, model: nn.Module, failure: Exception | None) -> Opinion:
    rank = dist.get_rank()
    if plan is None:
        own = isinstance(failure, FSDPMigrateError)
        return Opinion(rank, error=str(failure) if own else f"{type(failure).__name__}: {failure}")
    tensors = [*model.parameters(), *model.buffers()]
    shapes = [(name, tuple(p.shape), str(p.dtype)) for name, p in model.named_parameters()]
    text = repr(([(unit.fqn, unit.parameters) for unit in plan.units], plan.mesh_shape, shapes))
    fingerprint = hashlib.sha256(text.encode()).hexdigest()[:16]
    return Opinion(rank, fingerprint, sum(tensor.is_meta for tensor in tensors), len(tensors))


def _exchange(own: Opinion, groups: Sequence[dist.ProcessGroup | None]) -> list[Opinion]:
    known: list[Opinion] = [own]
    for group in groups:
        gathered: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(gathered, known, group=group)
        known = [opinion for part in gathered for opinion in part]
    return sorted(set(known), key=lambda opinion: opinion.rank)


def _check_same_plan(opinions: Sequence[Opinion]) -> None:
    first = opinions[0]
    for other in opinions[1:]:
        if other.fingerprint != first.fingerprint:
            msg = (
                f"Ranks {first.rank} and {other.rank} have different models or units: names, shapes, dtypes "
                "and the auto-wrap policy must give the same on every rank."
            )
            raise ModelError(msg)


def _check_meta(opinions: Sequence[Opinion], *, broadcasts: bool) -> None:
    meta = [opinion.rank for opinion in opinions if opinion.num_meta]
    real = [opinion.rank for opinion in opinions if not opinion.num_meta]
    if not meta or not real or (broadcasts and opinions[0].rank in real):
        return
    what = (
        "`sync_module_states=True` broadcasts from the first of them"
        if broadcasts
        else ("`sync_module_states` is not set")
    )
    msg = (
        f"The models of ranks {meta} are on the meta device and those of ranks {real} are not, but {what}. "
        f"Build the model of rank {opinions[0].rank} on a real device and pass `sync_module_states=True`, "
        "or build all alike."
    )
    raise ModelError(msg)
