"""``prepare_fully_shard``: an FSDP1 call, done by FSDP2."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from fsdp_migrate.arguments import FLAG, check_arguments
from fsdp_migrate.errors import ModelError, ProcessGroupError
from fsdp_migrate.findings import raise_on_findings
from fsdp_migrate.sharding import resolve
from fsdp_migrate.sharding.activation_checkpointing import (
    apply_checkpoint_plan,
)
from fsdp_migrate.sharding.attributes import carry_attributes
from fsdp_migrate.sharding.check import remember_sharded
from fsdp_migrate.sharding.communication import check_communication, set_communication
from fsdp_migrate.sharding.consensus import (
    agree_on_dtypes,
    agree_on_plan,
    any_rank_says,
    groups_of,
    together,
)
from fsdp_migrate.sharding.materialize import (
    broadcast_from_rank0,
    check_materialization,
    is_sharded,
    materialize_modules,
    modules_of_unit,
    restore_ties,
)
from fsdp_migrate.sharding.optimizer_findings import optimizer_findings
from fsdp_migrate.sharding.optimizers import (
    as_list,
    check_optimizers,
    move_steps_in_backward,
    repoint_optimizers,
    watch_replaced,
)
from fsdp_migrate.sharding.parallelism import Placed, expected_placement, has_own_mesh, parallel_placement
from fsdp_migrate.sharding.plan import ShardPlan, plan_fully_shard
from fsdp_migrate.sharding.precision import (
    apply_buffer_dtype,
    apply_full_precision_casts,
    apply_root_casts,
)
from fsdp_migrate.sharding.prefetch import ForwardPrefetch
from fsdp_migrate.sharding.skipped_units import agree_on_units
from fsdp_migrate.sharding.structure import check_is_module
from fsdp_migrate.sharding.told_in_training import tell_once_where_only_frozen_is_used
from fsdp_migrate.sharding.tying import parameter_names
from fsdp_migrate.sharding.units import made_apart
from fsdp_migrate.sharding.unsettled import refuse_unsettled
from fsdp_migrate.torch_compat import cpu_mends, device_meshes, devices, fsdp2, module_kinds, param_groups
from fsdp_migrate.torch_compat.packed_weights import keep_packed, packed_attributes, uncast
from fsdp_migrate.torch_compat.parameter_hooks import optimizers_in_backward
from fsdp_migrate.torch_compat.zeroed_gradients import zero_what_is_sharded


if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import torch
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule
    from torch.optim import Optimizer

    from fsdp_migrate.config import FSDP2Config
    from fsdp_migrate.sharding.consensus import Groups
    from fsdp_migrate.sharding.skipping import SkippedUnits
    from fsdp_migrate.sharding.tying import TieOwner
    from fsdp_migrate.sharding.units import UnitPlan


logger = logging.getLogger(__name__)

ModelT = TypeVar("ModelT", bound=nn.Module)

_plans: WeakKeyDictionary[nn.Module, ShardPlan] = WeakKeyDictionary()
_arguments: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()


def prepare_fully_shard(
    model: ModelT,
    fsdp1_config: Any = None,
    *,
    optimizers: Optimizer | Iterable[Optimizer] = (),
    mesh: DeviceMesh | None = None,
    auto_wrap_policy: Any = None,
    activation_checkpointing: Any = None,
    tied: TieOwner = "parent",
    reshard_after_forward: bool | int | None = None,
    skipped_units: SkippedUnits | None = None,
    communication: Mapping[str, Any] | None = None,
    strict: bool = False,
) -> ModelT:
    """Shard a model natively with FSDP2, as its FSDP1 arguments say.

    ``model = FSDP(model, **kwargs)`` becomes ``model = prepare_fully_shard(model, kwargs)``. Every argument
    has its effect, or a finding that says what differs; they are logged on rank 0 and stay in
    :func:`shard_plan`. All ranks must call it. Everything is checked before anything is changed.

    Changes: parameters become DTensors sharded on dimension 0, on the mesh's device; the class of each
    unit's module becomes ``FSDP<class>``; under ``buffer_dtype`` buffers are cast. Leaves alone: names,
    values, ``requires_grad``, the model's structure; no module is wrapped, ``.module`` does not appear.

    Composer has a function of the same name whose second argument is its own ``FSDP2Config``.

    Args:
        model: The model, neither wrapped nor sharded yet; on a real device, or on the meta device, from
            which it is materialised unit by unit, with the values that FSDP1 would have given it.
        fsdp1_config: An :class:`~fsdp_migrate.config.FSDP1Config`, or the keyword arguments of
            ``FullyShardedDataParallel`` as a dict, with torch's objects or their names; Accelerate's
            ``FullyShardedDataParallelPlugin``; or Composer's ``FSDPConfig``, for a model that bears
            Composer's marks. None: FSDP1's defaults.
        optimizers: One or several optimizers that were built from the model's parameters. They are pointed
            at the sharded ones; groups, settings and state are kept. One that is not given here raises an
            OptimizerError at its next step, for it would train nothing.
        mesh: A mesh in place of the config's groups: 1-D, or (replicate, shard). After tensor, sequence or
            expert parallelism, the data-parallel dimensions of the same root mesh.
        auto_wrap_policy: A policy in place of the config's.
        activation_checkpointing: The layers whose activations are recomputed, as ``which`` of
            :func:`~fsdp_migrate.activation_checkpointing.apply_activation_checkpointing` takes them, or a
            mapping with options too. True: the modules that the auto-wrap policy selects.
        tied: Which unit owns a parameter that several would share: ``parent``, the nearest unit above them
            (they are no units then), or ``group``, one unit made of them.
        reshard_after_forward: In place of what the strategy says: whether units other than the root are
            freed after forward, or to how many ranks they are sharded again.
        skipped_units: What becomes of units that some ranks run in a forward and others do not (a batch
            without images, an expert without tokens). ``join``: a rank that skips a unit joins its gathers,
            and its reduction with gradients of zeros. ``error``: a RanksDivergedError on every rank, which
            names units and ranks. Both have ranks agree before each collective. None: this is not looked
            for, and ranks wait for each other or compute with wrong parameters, as under FSDP1.
        communication: What every unit communicates with, where it is not torch's own: ``all_gather`` and
            ``reduce_scatter``, objects as ``FSDPModule.set_custom_all_gather`` and
            ``set_custom_reduce_scatter`` take them, or ``allocate_memory_from_process_group=True``. Not in
            torch 2.7.
        strict: Treat findings that change something as errors.

    Returns:
        The same model.

    Raises:
        ConfigError: An argument means nothing, or contradicts another.
        FindingsError: Something cannot be migrated, or ``strict`` and something would change.
        ModelError: The model cannot be sharded so.
        OptimizerError: An optimizer holds parameters of another model.
        ProcessGroupError: No process group is initialised.
        SourceError: ``fsdp-migrate rewrite`` left something in this run's modules to be settled by hand.
        UnsupportedFeatureError: Something is not supported on this torch, or not yet.
        WrapPolicyError: The policy cannot be evaluated on this model.

    Example:
        >>> import torch.distributed as dist
        >>> from fsdp_migrate.runtime import end_process_group
        >>> store = dist.HashStore()
        >>> dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        >>> model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> model = prepare_fully_shard(model, {"auto_wrap_policy": {nn.Linear}, "device_id": "cpu"})
        >>> [unit.fqn for unit in shard_plan(model).units]
        ['0', '2', '']
        >>> end_process_group()
    """
    _check_process_group()
    every: list[Optimizer] = []

    def make_plan() -> ShardPlan:
        refuse_unsettled()
        check_is_module(model)
        check_arguments(FLAG, strict=strict)
        # Here, and not above: what is none on one rank is to be an error on all.
        every.extend(as_list(optimizers))
        plan = plan_fully_shard(
            model,
            fsdp1_config,
            mesh=mesh,
            auto_wrap_policy=auto_wrap_policy,
            activation_checkpointing=activation_checkpointing,
            tied=tied,
            reshard_after_forward=reshard_after_forward,
            skipped_units=skipped_units,
        )
        check_optimizers(every, parameter_names(model))
        stepping = [each for param in model.parameters() for each in optimizers_in_backward(param)]
        apart = made_apart(model, plan.config, plan.ignored, plan.findings)
        findings = (*plan.findings, *apart, *optimizer_findings([*every, *stepping]))
        plan = replace(plan, findings=findings, communication=check_communication(communication))
        raise_on_findings(plan.findings, strict=strict)
        resolve.check_device(plan.config)
        check_materialization(model, plan)
        return plan

    groups = groups_of(fsdp1_config, mesh, model)
    # Everything that can fail on one rank alone is in the plan: from here on ranks communicate, and one that
    # stopped would leave the others waiting.
    plan = agree_on_plan(make_plan, model, groups)
    raise_on_findings(plan.findings, strict=strict)  # what ranks found together, which is the same on each
    # Before sharding, which puts other parameters in the place of those that the optimizers hold.
    names = parameter_names(model)
    # Before sharding, too: around a sharded layer, recomputing would run FSDP2's hooks and gather once more.
    if plan.checkpointing is not None:
        apply_checkpoint_plan(model, plan.checkpointing)
    shard_as_planned(model, plan, groups, mesh=mesh)
    set_communication(model, communication)
    # For `load_checkpoint`: a checkpoint of flat parameters is taken apart by the arguments that made it.
    _arguments[model] = fsdp1_config
    repoint_optimizers(every, names, dict(model.named_parameters(remove_duplicate=False)))
    _log_findings(plan)
    return model


def _check_process_group() -> None:
    if not dist.is_initialized():
        refuse_unsettled()  # otherwise told to all ranks, in the plan
        msg = (
            "There is no process group. Start with torchrun and call "
            "`torch.distributed.init_process_group()` before prepare_fully_shard."
        )
        raise ProcessGroupError(msg)


def shard_as_planned(
    model: nn.Module, plan: ShardPlan, groups: Groups, *, mesh: DeviceMesh | None = None
) -> None:
    """Shard the model by a plan that all ranks of the groups agree on, verify it, and remember the plan."""
    names = parameter_names(model)
    meshes = apply_plan(model, plan, groups, mesh=mesh)
    _verify(model, plan, names, meshes)
    if plan.skipped_units is not None:
        agree_on_units(model, plan.skipped_units)
    sharded = dict(model.named_parameters(remove_duplicate=False))
    move_steps_in_backward(names, sharded)
    carry_attributes(names, sharded)
    watch_replaced(names, sharded)
    remember_sharded(model)
    _plans[model] = plan


def shard_plan(model: nn.Module) -> ShardPlan:
    """Return the plan by which :func:`prepare_fully_shard` sharded the model.

    Raises:
        ModelError: The model was not sharded by it.
    """
    check_is_module(model)
    try:
        return _plans[model]
    except KeyError:
        msg = "The model was not sharded by prepare_fully_shard, so there is no plan of it."
        raise ModelError(msg) from None


def fsdp1_arguments(model: nn.Module) -> tuple[nn.Module, Any] | None:
    """Return the module that :func:`prepare_fully_shard` was given, and the FSDP1 arguments; or None.

    The module is the model, or the one that ``torch.compile`` wrapped into it afterwards. Without arguments,
    which means FSDP1's defaults, they are an empty mapping.
    """
    if model in _arguments:
        return model, {} if _arguments[model] is None else _arguments[model]
    inner = module_kinds.without_compile(model)
    return None if inner is model else fsdp1_arguments(inner)


def apply_plan(
    model: nn.Module, plan: ShardPlan, groups: Groups, *, mesh: DeviceMesh | None = None
) -> dict[str, DeviceMesh]:
    """Shard the model by the plan, unit by unit; a collective call of all ranks.

    Returns:
        The mesh that each unit was sharded on, by the unit's name.

    Raises:
        ModelError: A module could not be initialised on another rank.
    """
    # FSDP1 moved parameters to `device_id` whatever the current device was; FSDP2 uses the current one.
    index = resolve.resolve_device_index(plan.config)
    devices.make_current(resolve.resolve_device_type(plan.config), index)
    meshes = _Meshes(mesh, plan.config)
    root_mesh = meshes.of(plan.config)
    cpu_mends.mend_fsdp2_on_cpu(root_mesh.device_type)
    ignored = {model.get_parameter(name) for name in plan.ignored}
    packed = packed_attributes(model)  # before meta tensors get memory and lose them
    units: list[FSDPModule] = []
    experts = {parameter.unit for parameter in plan.parallel if parameter.expert}
    has_meta = any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
    # Asked of all ranks: to fill a unit is a collective call, which ranks without meta tensors have to join.
    materialised_with = groups if any_rank_says(has_meta, groups) else None
    # Inner units come first: fully_shard takes the parameters that no unit below has taken. Each is filled
    # just before it is sharded, so that a model of the meta device is never whole in memory.
    for unit in plan.units:
        unit_mesh = meshes.of(unit.config)
        _fill_unit(model, plan, unit, unit_mesh, ignored, materialised_with)
        uncast_here = {model.get_parameter(name) for name in unit.parameters if name in packed}
        modules = _shard_unit(model, unit, unit_mesh, ignored, uncast_here)
        if unit.fqn in experts:
            # An expert gets tokens of every data-parallel rank, also of those that are not in its own mesh.
            device_meshes.set_gradient_divisor(modules, unit_mesh, root_mesh.size())
        if not unit.config.backward_prefetch:
            fsdp2.stop_backward_prefetch(modules)
        units.extend(modules)
    keep_packed(model, packed)
    # Only now that all units are there: when one may be reduced is decided by the forwards of all of them.
    param_groups.reduce_as_fsdp1(model, tell_once_where_only_frozen_is_used())
    zero_what_is_sharded()
    # After sharding, for it is the units that are told (torch 2.8); and on every rank, for gloo is asked by a
    # collective.
    for each in meshes:
        cpu_mends.mend_gloo_averaging(each, units)
    if plan.config.forward_prefetch and plan.skipped_units is None:
        ForwardPrefetch(model, units)
    # Hooks that run after FSDP2's: FSDP1 registered its own so that they run after all others.
    apply_root_casts(model, plan)
    apply_full_precision_casts(model, plan)
    # Only now: FSDP1 cast buffers in its first forward, after it had filled and broadcast them in their own
    # dtype.
    apply_buffer_dtype(model, plan)
    return {unit.fqn: meshes.of(unit.config) for unit in plan.units}


def _fill_unit(
    model: nn.Module,
    plan: ShardPlan,
    unit: UnitPlan,
    mesh: DeviceMesh,
    ignored: set[nn.Parameter],
    groups: Groups | None,
) -> None:
    """Give one unit's meta tensors their values, and every rank those of rank 0, before it is sharded.

    ``groups`` is None where no rank has meta tensors, so that nobody runs what the user wrote.
    """
    skipped = {model.get_submodule(fqn) for fqn in plan.ignored_modules}
    roots = [model.get_submodule(fqn) for fqn in (*unit.grouped, unit.fqn)]
    modules = modules_of_unit(roots, lambda module: module in skipped or is_sharded(module))
    device = resolve.resolve_device(mesh)
    if groups is not None:
        where = (
            f"could not initialise unit `{unit.fqn or 'the root'}`, so that every rank stops. The model is "
            "sharded in part; build it again. The reason"
        )
        together(lambda: materialize_modules(modules, device, unit.config.param_init_fn), groups, where)
        agree_on_dtypes(filled(model, unit, modules), groups)
    own = set(unit.parameters)
    # After `to_empty`, which gives each name of a tied parameter memory of its own; and before the broadcast,
    # so that what is sent arrives under all names.
    restore_ties(model, (tie for tie in plan.ties if own.intersection(tie.names)))
    if unit.config.broadcast_from_rank0:
        # Ignored modules too, of which FSDP1 left the parameters alone and sent the buffers.
        broadcast_from_rank0(modules_of_unit(roots, is_sharded), ignored, mesh)


def filled(model: nn.Module, unit: UnitPlan, modules: Iterable[nn.Module]) -> dict[str, torch.Tensor]:
    """Return what ranks communicate of a unit, by name: its parameters, and buffers that are broadcast."""
    found: dict[str, torch.Tensor] = {each: model.get_parameter(each) for each in unit.parameters}
    own = set(modules) if unit.config.broadcast_from_rank0 else set()
    # By their names in the model: ranks may ignore different modules.
    for root in (*unit.grouped, unit.fqn) if own else ():
        for fqn, module in model.get_submodule(root).named_modules(prefix=root):
            if module in own:
                found.update(module.named_buffers(prefix=fqn, recurse=False))
    return found


class _Meshes:
    """Makes one mesh for each kind that units ask for, and the same one for the same request."""

    def __init__(self, override: DeviceMesh | None, root: FSDP2Config) -> None:
        self._override = override
        self._root = root
        self._made: dict[tuple[Any, ...], DeviceMesh] = {}

    def of(self, config: FSDP2Config) -> DeviceMesh:
        key = (config.mesh, id(config.process_group), id(config.device_mesh), config.device_id)
        if key not in self._made:
            own = has_own_mesh(config, self._root)
            self._made[key] = resolve.make_mesh(config, None if own else self._override)
        return self._made[key]

    def __iter__(self) -> Any:
        return iter(self._made.values())


def _shard_unit(
    model: nn.Module, unit: UnitPlan, mesh: DeviceMesh, ignored: set[Any], packed: set[nn.Parameter]
) -> list[FSDPModule]:
    arguments: dict[str, Any] = {
        "mesh": mesh,
        "mp_policy": uncast(resolve.resolve_mp_policy(unit.mp_policy), packed),
        "offload_policy": resolve.resolve_offload_policy(unit.config.offload_policy),
    }
    # Up to torch 2.7 None is no value for it, and later it is the default.
    if unit.reshard_after_forward is not None:
        arguments["reshard_after_forward"] = unit.reshard_after_forward
    # torch 2.6 has no such argument.
    if ignored:
        arguments["ignored_params"] = ignored
    modules = [model.get_submodule(fqn) for fqn in (*unit.grouped, unit.fqn)]
    given = [model.get_parameter(name) for name in unit.parameters]
    for parameter in given:
        if not parameter.is_contiguous():  # fully_shard refuses those (FM109)
            parameter.data = parameter.data.contiguous()
    places = [parameter.data for parameter in given]
    try:
        sharded = fsdp2.shard_modules(modules, arguments)
    except (AttributeError, TypeError) as error:  # what classes raise that allow no subclass, or no attribute
        kinds = " and ".join(sorted({type(module).__name__ for module in modules}))
        msg = (
            f"torch's fully_shard failed on unit `{unit.fqn or 'the root'}` ({kinds}): "
            f"{type(error).__name__}: {error}. It makes a subclass of the module's class and sets its "
            "parameters, which that class must allow. The model is sharded in part; build it again, without "
            "this unit or with the module in `ignored_modules`."
        )
        raise ModelError(msg, fqn=unit.fqn) from error
    for parameter, place in zip(given, places, strict=True):
        # fully_shard moves them to the device. There the model would be whole in the end, because those that
        # were given are held until then: they go back, and only shards stay.
        if parameter.device != place.device:
            parameter.data = place
    return sharded


def _verify(
    model: nn.Module,
    plan: ShardPlan,
    before: dict[nn.Parameter, tuple[str, ...]],
    meshes: Mapping[str, DeviceMesh],
) -> None:
    """Check that what was planned is what came out; a failure here is an error of ours or of torch's."""
    after = {names: param for param, names in parameter_names(model).items()}
    if set(after) != set(before.values()):
        lost = sorted(set(before.values()) - set(after))
        msg = f"Sharding changed the names or ties of parameters: {lost}. Please report this model."
        raise ModelError(msg)
    replicas, shards = plan.mesh_shape
    if meshes[plan.root.fqn].size() != replicas * shards:
        msg = f"The root's mesh has {meshes[plan.root.fqn].size()} ranks; planned were {replicas * shards}."
        raise ModelError(msg)
    was = {name: parallel_placement(param) for param, names in before.items() for name in names}
    by_name = {name: param for names, param in after.items() for name in names}
    for unit in plan.units:
        for name in unit.parameters:
            param = by_name[name]
            if not isinstance(param, DTensor):
                msg = f"Parameter `{name}` of unit `{unit.fqn}` was not sharded. Please report this model."
                raise ModelError(msg, fqn=name)
            placed = expected_placement(was[name], meshes[unit.fqn])
            if Placed.of(param) != placed:
                msg = f"Parameter `{name}` is placed {Placed.of(param)}; expected {placed}."
                raise ModelError(msg, fqn=name)


def _log_findings(plan: ShardPlan) -> None:
    if dist.get_rank() != 0:
        return
    for finding in plan.findings:
        level = logging.WARNING if finding.fidelity == "changed" else logging.INFO
        logger.log(level, "%s %s: %s", finding.code, finding.subject, finding.message)
