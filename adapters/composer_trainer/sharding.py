"""Shards a ``ComposerModel`` as Composer's FSDP1 did: each direct child on its own, metrics left alone."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from fsdp_migrate.adapters.composer_trainer.companions import Run, companion_findings
from fsdp_migrate.adapters.config_objects.composer_groups import GroupWord
from fsdp_migrate.adapters.config_objects.composer_marks import (
    composer_children,
    composer_wrap_policy,
    layers_to_checkpoint,
    meta_initialiser,
)
from fsdp_migrate.errors import ConfigError, ModelError
from fsdp_migrate.findings import Finding, make_finding, raise_on_findings
from fsdp_migrate.sharding import consensus
from fsdp_migrate.sharding.activation_checkpointing import apply_activation_checkpointing
from fsdp_migrate.sharding.consensus import agree_on_plan, groups_of
from fsdp_migrate.sharding.materialize import check_materialization
from fsdp_migrate.sharding.optimizer_findings import optimizer_findings
from fsdp_migrate.sharding.optimizers import check_optimizers, repoint_optimizers
from fsdp_migrate.sharding.plan import ShardPlan, plan_fully_shard
from fsdp_migrate.sharding.prepare import shard_as_planned
from fsdp_migrate.sharding.tying import parameter_names
from fsdp_migrate.torch_compat import module_kinds


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from fsdp_migrate.adapters.config_objects.composer import ComposerMapping, ComposerSettings
    from fsdp_migrate.adapters.config_objects.composer_marks import Children
    from fsdp_migrate.config import FSDP1Config
    from fsdp_migrate.sharding.tying import TieOwner


logger = logging.getLogger(__name__)

REPLICATE, SHARD = "dp_replicate", "dp_shard"
"""The names of the mesh's dimensions that Composer looks for when it saves (its ``ParallelismType``)."""


@dataclass(frozen=True)
class ShardRequest:
    """A model that is to be sharded: what the config says, on which device, and with which optimizers."""

    model: nn.Module
    mapping: ComposerMapping
    device: torch.device
    optimizers: Sequence[torch.optim.Optimizer] = ()
    tied: TieOwner = "parent"
    strict: bool = False
    tensor_parallel: bool = False
    local_world_size: int = 1
    reshard_after_forward: bool | int | None = None
    companions: Sequence[Any] = ()
    """The Trainer's other callbacks, and its algorithms."""


def make_mesh(settings: ComposerSettings, device_type: str) -> DeviceMesh:
    """Make the mesh that Composer's state makes of the degrees: (shard), or (replicate, shard)."""
    replicas, shards = settings.mesh_shape(dist.get_world_size())
    if settings.replicate_degree is None:
        return init_device_mesh(device_type, (shards,), mesh_dim_names=(SHARD,))
    return init_device_mesh(device_type, (replicas, shards), mesh_dim_names=(REPLICATE, SHARD))


class GroupMaker:
    """Makes process groups of Composer's words for them, one for the same ranks; calls are collective."""

    def __init__(self, local_world_size: int) -> None:
        self._local_world_size = local_world_size
        self._made: dict[tuple[int, ...], dist.ProcessGroup] = {}

    def __call__(self, group: Any) -> Any:
        """Return the group, or the pair of groups, that this rank is in; what is a group stays one."""
        if isinstance(group, tuple):
            return tuple(self(item) for item in group)
        if not isinstance(group, GroupWord):
            return group
        ranks = group.ranks_of(dist.get_rank(), dist.get_world_size(), self._local_world_size)
        every: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(every, ranks)
        # Every rank makes every group, in one order: `new_group` waits for ranks that are in none of it, too.
        for members in sorted(set(every)):
            if members not in self._made:
                made = dist.new_group(list(members))
                if dist.get_rank() in members:
                    self._made[members] = made
        return self._made[ranks]


def shard_composer_model(request: ShardRequest) -> tuple[Finding, ...]:
    """Shard the children of the model in place, and point its optimizers at what they hold then.

    Everything is checked on all ranks before anything is changed. A collective call of all ranks.

    Returns:
        What there is to say, each once.

    Raises:
        FSDPMigrateError: On every rank, if any of them cannot shard; see ``prepare_fully_shard``.
    """
    model, children = request.model, composer_children(request.model)
    make_group = GroupMaker(request.local_world_size)
    base = _base_config(request, make_group)
    configs = {
        name: _config_of_child(base, child, request.device, make_group)
        for name, child in children.sharded.items()
        if holds_parameters(child)
    }
    findings: list[Finding] = []
    layers = _layers(request, children)

    def check() -> None:
        names = parameter_names(model)
        if not request.tensor_parallel:
            check_optimizers(request.optimizers, names)
        _check_ties(children, model)
        findings.extend(_model_findings(request, children, layers))
        findings.extend(optimizer_findings(request.optimizers))
        findings.extend(companion_findings(request.companions, _run_of(request)))
        raise_on_findings([*request.mapping.findings, *findings], strict=request.strict)

    # All children are checked and planned before the first is sharded: a model that is sharded in part helps
    # nobody.
    together(check)
    plans = {name: _agree(request, children.sharded[name], config) for name, config in configs.items()}
    # Before sharding, for the optimizers, which hold these parameters.
    names = parameter_names(model)
    # Before sharding, too: recomputing changes a layer in place, and its unit is made of what it is then.
    _checkpoint_layers(request, layers)
    for name, plan in plans.items():
        groups = groups_of(configs[name], None, children.sharded[name])
        shard_as_planned(children.sharded[name], plan, groups)
        findings.extend(plan.findings)
    _repoint(request, names)
    return tuple(dict.fromkeys([*request.mapping.findings, *findings]))


def together(work: Callable[[], None], fields: Callable[[], Mapping[str, Any] | None] | None = None) -> None:
    """Do what may fail on this rank alone, so that it fails on all ranks.

    ``fields``, asked for after that, are those of a config, which must be the same on every rank, objects as
    far as their kind; None is no config.

    Raises:
        ModelError: It failed on another rank; on this one, its own error.
        ConfigError: The ranks have other configs.
    """
    if not dist.is_initialized():
        work()
        return
    consensus.together(work, [None], "cannot shard its model, so no rank does")
    if fields is None:
        return
    given = fields()
    own = None if given is None else {n: _outline(v) for n, v in given.items() if not n.startswith("_")}
    said: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(said, own)
    _check_same(said)


def _outline(value: Any) -> Any:
    """Return what can be sent to other ranks and compared there."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(name): _outline(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_outline(inner) for inner in value]
    return str(value) if isinstance(value, torch.dtype) else type(value).__qualname__


def _check_same(configs: Sequence[Mapping[str, Any] | None]) -> None:
    """Refuse configs that differ over the ranks: each would wait for what the others never do."""
    for rank, config in enumerate(configs):
        if config == configs[0]:
            continue
        if config is None or configs[0] is None:
            who = rank if config is None else 0
            msg = f"Rank {who} has no FSDP1 config, and others have one. Give every rank the same."
            raise ConfigError(msg, field="fsdp")
        first, other = configs[0], config
        name = next(each for each in {**first, **other} if first.get(each) != other.get(each))
        msg = (
            f"The ranks have other configs: `{name}` is {first.get(name)!r} on rank 0 and "
            f"{other.get(name)!r} on rank {rank}. Give every rank the same."
        )
        raise ConfigError(msg, field=name)


def _base_config(request: ShardRequest, make_group: GroupMaker) -> FSDP1Config:
    """Return the FSDP1 config that all children share, with groups and the device in it."""
    mapping = request.mapping
    more: dict[str, Any] = {}
    if mapping.settings.process_group is not None:
        more["process_group"] = make_group(mapping.settings.process_group)
    if "process_group" in more or mapping.config.process_group is not None:
        more["device_mesh"] = None  # FSDP1 looks at the group only
    more["device_id"] = str(request.device)
    return mapping.config.updated(**more)


def _config_of_child(
    base: FSDP1Config, child: nn.Module, device: torch.device, make_group: GroupMaker
) -> FSDP1Config:
    more: dict[str, Any] = {"auto_wrap_policy": composer_wrap_policy(child, make_group)}
    initialise = meta_initialiser(child, device)
    if initialise is not None:
        more["param_init_fn"] = initialise
    if base.ignored_modules:
        inside = set(child.modules())
        more["ignored_modules"] = [module for module in base.ignored_modules if module in inside]
    return base.updated(**more)


def holds_parameters(child: nn.Module) -> bool:
    """Tell whether a module has any parameters."""
    return next(child.parameters(), None) is not None


def has_shards(model: nn.Module) -> bool:
    """Tell whether any child of the model is sharded, or would be."""
    return any(holds_parameters(child) for child in composer_children(model).sharded.values())


def _run_of(request: ShardRequest) -> Run:
    return Run(
        model=request.model,
        optimizers=tuple(request.optimizers),
        has_replicas=request.mapping.config.sharding_strategy not in {"FULL_SHARD", "SHARD_GRAD_OP"},
        broadcasts=request.mapping.config.sync_module_states,
    )


def _agree(request: ShardRequest, child: nn.Module, config: FSDP1Config) -> ShardPlan:
    def make() -> ShardPlan:
        plan = plan_fully_shard(
            child, config, tied=request.tied, reshard_after_forward=request.reshard_after_forward
        )
        raise_on_findings(plan.findings, strict=request.strict)
        check_materialization(child, plan)
        return plan

    return agree_on_plan(make, child, groups_of(config, None, child))


def _check_ties(children: Children, model: nn.Module) -> None:
    """Refuse one parameter in two children: FSDP1 tore it apart without a word."""
    owner: dict[Any, str] = {}
    for name, child in children.sharded.items():
        for parameter in child.parameters():
            first = owner.setdefault(parameter, name)
            if first != name:
                names = " and ".join(f"`{each}`" for each in parameter_names(model)[parameter])
                msg = (
                    f"{names} are one parameter in two children of the ComposerModel, `{first}` and "
                    f"`{name}`, each of which is sharded on its own: FSDP1 made two parameters of "
                    "it. Put both modules into one child, or untie them."
                )
                raise ModelError(msg, fqn=name)


def _layers(request: ShardRequest, children: Children) -> list[nn.Module]:
    settings = request.mapping.settings
    if not settings.recompute and not settings.offload_activations:
        return []
    return [
        layer
        for child in children.sharded.values()
        for layer in layers_to_checkpoint(child)
        if module_kinds.has_forward(layer)
    ]


def _checkpoint_layers(request: ShardRequest, layers: Sequence[nn.Module]) -> None:
    if not layers:
        return
    settings, chosen = request.mapping.settings, set(layers)
    apply_activation_checkpointing(
        request.model,
        lambda module: module in chosen,
        reentrant=settings.reentrant and settings.recompute,
        offload_to_cpu=settings.offload_activations,
        recompute=settings.recompute,
    )


def _model_findings(request: ShardRequest, children: Children, layers: Sequence[nn.Module]) -> list[Finding]:
    """Say what becomes of the parts of the model that are not sharded."""
    findings = []
    settings = request.mapping.settings
    if (settings.recompute or settings.offload_activations) and not layers:
        text = "No module is marked for it, so nothing is recomputed or offloaded, as under FSDP1."
        hint = (
            "Define `activation_checkpointing_fn` on the child, or mark layers `_activation_checkpointing`."
        )
        findings.append(make_finding("FM415", "activation_checkpointing", text, hint))
    if not has_shards(request.model):
        text = "No child to shard: Composer trains it whole, by DistributedDataParallel, as under FSDP1."
        hint = "Put what is to be sharded into a child: `self.model = ...`."
        findings.append(make_finding("FM119", type(request.model).__name__, text, hint))
        return findings
    alone = list(children.unwrapped)
    alone += [name for name, _ in request.model.named_parameters(recurse=False)]
    if alone:
        names = ", ".join(f"`{name}`" for name in alone)
        text = f"{names}: left alone as under FSDP1: not sharded, and gradients are not averaged."
        hint = "Put parameters into a child that is sharded, if ranks are to agree on them."
        findings.append(make_finding("FM416", "_fsdp_wrap", text, hint))
    if children.metrics:
        names = ", ".join(f"`{name}`" for name in children.metrics)
        findings.append(make_finding("FM417", "metrics", f"{names}: left alone, as under FSDP1."))
    return findings


def _repoint(request: ShardRequest, names: Mapping[nn.Parameter, tuple[str, ...]]) -> None:
    if not request.tensor_parallel:
        sharded = dict(request.model.named_parameters(remove_duplicate=False))
        repoint_optimizers(request.optimizers, names, sharded)
        return
    # Tensor parallelism has replaced the parameters before, under the optimizer's feet; Composer allows it
    # for one group of all parameters only, and FSDP1 filled that group anew.
    for optimizer in request.optimizers:
        (group,) = optimizer.param_groups
        group["params"] = list(request.model.parameters())
        optimizer.state.clear()
