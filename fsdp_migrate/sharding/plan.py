"""The plan: which modules become units, with which settings, before anything is touched."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy

from fsdp_migrate.adapters.config_objects.accelerate import is_accelerate_plugin, plugin_arguments
from fsdp_migrate.arguments import FLAG, NOTHING, TEXT, WHOLE, check_arguments, whole_number_from
from fsdp_migrate.config import FSDP1Config, FSDP2Config, SizeWrap
from fsdp_migrate.errors import ConfigError, ProcessGroupError, WrapPolicyError
from fsdp_migrate.findings import counted, make_finding
from fsdp_migrate.mapping import map_config
from fsdp_migrate.sharding import resolve
from fsdp_migrate.sharding.activation_checkpointing import plan_if_chosen
from fsdp_migrate.sharding.check import check_model, check_parameters, check_units
from fsdp_migrate.sharding.estimates import estimate_plan, estimate_unit
from fsdp_migrate.sharding.framework_configs import read_framework_config
from fsdp_migrate.sharding.gather_hooks import checked_hooks
from fsdp_migrate.sharding.ignored import check_can_ignore, ignored_elsewhere, resolve_ignored
from fsdp_migrate.sharding.optimizers import steps_in_backward
from fsdp_migrate.sharding.packed_weights import check_left_out, stored_as_integers, told_of_packed
from fsdp_migrate.sharding.parallelism import check_parallelism
from fsdp_migrate.sharding.skipping import check_skipped_units, skipping_findings
from fsdp_migrate.sharding.structure import check_structure
from fsdp_migrate.sharding.tying import Tie, TieOwner, find_ties, parameter_names
from fsdp_migrate.sharding.units import plan_units
from fsdp_migrate.sharding.without_forward import without_forward
from fsdp_migrate.sharding.wrap import WrapRequest, find_units, resolve_classes


if TYPE_CHECKING:
    from fsdp_migrate.findings import Finding
    from fsdp_migrate.sharding.activation_checkpointing import CheckpointPlan
    from fsdp_migrate.sharding.estimates import PlanBytes
    from fsdp_migrate.sharding.framework_configs import FrameworkConfig
    from fsdp_migrate.sharding.parallelism import ParallelParameter
    from fsdp_migrate.sharding.skipping import SkippedUnits
    from fsdp_migrate.sharding.units import UnitPlan


FULL_PRECISION_EVALUATION = "FSDP_USE_FULL_PREC_IN_EVAL"
_COUNT = whole_number_from(1)


@dataclass(frozen=True)
class ShardPlan:
    """What :func:`~fsdp_migrate.prepare_fully_shard` does to a model. Pure data, by name.

    ``units`` are in the order in which they are sharded: inner ones first, the root last. ``mesh_shape`` is
    (replicas, shards). ``ignored`` and ``ignored_modules`` are the names of what is left alone,
    ``full_precision`` those of the modules that stay out of mixed precision, units or not. ``parallel`` are
    the parameters that tensor, sequence or expert parallelism has placed before. ``checkpointing`` says which
    layers are recomputed, and how; None: none are asked for. ``skipped_units`` is what becomes of units that
    some ranks skip, ``communication`` the names of what units communicate with in place of torch's own.
    """

    units: tuple[UnitPlan, ...]
    config: FSDP2Config
    mesh_shape: tuple[int, int]
    ties: tuple[Tie, ...]
    ignored: tuple[str, ...]
    ignored_modules: tuple[str, ...]
    full_precision: tuple[str, ...]
    findings: tuple[Finding, ...]
    parallel: tuple[ParallelParameter, ...] = ()
    checkpointing: CheckpointPlan | None = None
    skipped_units: SkippedUnits | None = None
    communication: tuple[str, ...] = ()

    @property
    def root(self) -> UnitPlan:
        """The unit of the whole model."""
        return self.units[-1]

    @property
    def bytes(self) -> PlanBytes:
        """What the whole plan costs."""
        return estimate_plan(
            [unit.bytes for unit in self.units if unit.bytes is not None],
            frees=[unit.frees_after_forward for unit in self.units],
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as plain JSON data."""
        return {
            "mesh_shape": list(self.mesh_shape),
            "units": [
                {
                    "fqn": unit.fqn,
                    "class": unit.module_class,
                    "grouped": list(unit.grouped),
                    "parameters": list(unit.parameters),
                    "numel": unit.numel,
                    "bytes": None if unit.bytes is None else asdict(unit.bytes),
                    "reshard_after_forward": unit.reshard_after_forward,
                    "mp_policy": unit.mp_policy.model_dump(),
                }
                for unit in self.units
            ],
            "bytes": self.bytes.as_dict(),
            "ties": [asdict(tie) for tie in self.ties],
            "ignored": list(self.ignored),
            "full_precision": list(self.full_precision),
            "parallel": [parameter.as_dict() for parameter in self.parallel],
            "activation_checkpointing": list(self.checkpointing.layers) if self.checkpointing else [],
            "skipped_units": self.skipped_units,
            "communication": list(self.communication),
            "findings": [finding.as_dict() for finding in self.findings],
        }


def read_config(fsdp1_config: Any) -> FSDP1Config:
    """Read what stands for an FSDP1 config: one, a mapping of FSDP's arguments, or Accelerate's plugin.

    Raises:
        ConfigError: It is neither, or holds something unknown.
    """
    if isinstance(fsdp1_config, FSDP1Config):
        return fsdp1_config
    if fsdp1_config is None:
        return FSDP1Config()
    if isinstance(fsdp1_config, Mapping):
        for key in fsdp1_config:
            check_arguments(TEXT, **{"a key of fsdp1_config": key})
        return FSDP1Config(**fsdp1_config)
    if is_accelerate_plugin(fsdp1_config):
        return FSDP1Config(**plugin_arguments(fsdp1_config))
    kind = type(fsdp1_config)
    msg = (
        f"`fsdp1_config` is a {kind.__module__}.{kind.__qualname__}, which is no config that is known here. "
        "Pass the keyword arguments of FullyShardedDataParallel as a dict, an FSDP1Config, Accelerate's "
        "plugin or Composer's FSDPConfig."
    )
    raise ConfigError(msg, field="fsdp1_config")


def plan_fully_shard(
    model: nn.Module,
    fsdp1_config: Any,
    *,
    mesh: DeviceMesh | None = None,
    world_size: int | None = None,
    devices_per_node: int | None = None,
    auto_wrap_policy: Any = None,
    activation_checkpointing: Any = None,
    tied: TieOwner = "parent",
    reshard_after_forward: bool | int | None = None,
    skipped_units: SkippedUnits | None = None,
) -> ShardPlan:
    """Plan what :func:`prepare_fully_shard` would do, changing nothing.

    Args:
        model: The model, as it would be given to ``FullyShardedDataParallel``.
        fsdp1_config: Its FSDP1 arguments: an :class:`FSDP1Config`, or a mapping of keyword arguments.
        mesh: The mesh to shard on, in place of the config's.
        world_size: The number of ranks. With it no process group is needed.
        devices_per_node: The number of ranks on one node, which is a shard group of HYBRID_SHARD where no
            groups are given. None: the accelerators of this machine, or as FSDP1 has it 1 for the CPU.
        auto_wrap_policy: A policy in place of the config's.
        activation_checkpointing: The layers whose activations are to be recomputed, as
            :func:`prepare_fully_shard` takes them; None: as the config says, where it is Composer's.
        tied: Which unit owns a parameter that several would share: ``parent``, the nearest unit above them
            (they are no units then), or ``group``, one unit made of them.
        reshard_after_forward: What becomes of the parameters of every unit but the root after its forward,
            in place of what the strategy says: freed, kept, or as a number sharded again over that many
            ranks, which FSDP1 did not have (ZeRO++'s hpZ).
        skipped_units: What becomes of units that some ranks run in a forward and others do not, as
            :func:`prepare_fully_shard` takes it; None: they are not looked for.

    Raises:
        ConfigError: An argument means nothing, or contradicts another.
        WrapPolicyError: The policy cannot be evaluated on this model, or selects nothing.
        ModelError: The model cannot be sharded so; the message names the parameter or module.
        UnsupportedFeatureError: Something that is not supported on this torch, or not yet.
        ProcessGroupError: There is no process group and no ``world_size``.

    Example:
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> plan = plan_fully_shard(model, {"auto_wrap_policy": "Linear"}, world_size=8)
        >>> [(unit.fqn, unit.numel) for unit in plan.units]
        [('0', 20), ('2', 10), ('', 0)]
    """
    check_structure(model)
    check_arguments(_COUNT | NOTHING, world_size=world_size, devices_per_node=devices_per_node)
    check_arguments(FLAG | WHOLE | NOTHING, reshard_after_forward=reshard_after_forward)
    _check_tied(tied)
    check_skipped_units(skipped_units, reshard_after_forward)
    framework = read_framework_config(fsdp1_config, model, has_mesh=mesh is not None)
    given = read_config(fsdp1_config) if framework is None else framework.config
    if auto_wrap_policy is not None:
        given = given.updated(auto_wrap_policy=auto_wrap_policy)
    config, findings = map_config(given)
    findings = (*(framework.findings if framework else ()), *findings)
    mesh_shape = _mesh_shape(config, mesh, world_size, devices_per_node)
    reshard: dict[str, Any] = {}
    if reshard_after_forward is not None:
        _check_reshard(reshard_after_forward, mesh_shape[1])
        reshard["reshard_after_forward"] = reshard_after_forward
    config = config.model_copy(update=reshard)
    request = _checked_request(model, given, config)
    units, more = plan_units(model, given, find_units(model, request), request, tied)
    units = tuple(replace(unit, config=unit.config.model_copy(update=reshard)) for unit in units)
    _check_wrapped(model, config.auto_wrap_policy, units, more)
    more.extend(_trained_ignored(request))
    more.extend((*ignored_elsewhere(model, config), *_lone_replicas(config, mesh_shape)))
    more.extend((*told_of_packed(model, units), *checked_hooks(model, units, mesh_shape)))
    full_precision = tuple(_full_precision_modules(model, config))
    members = {model.get_submodule(fqn): unit.fqn for unit in units for fqn in (unit.fqn, *unit.grouped)}
    check_units(model, units)
    more.extend(steps_in_backward(_sharded_parameters(model, request)))
    more.extend((*_strided(_sharded_parameters(model, request)), *_full_precision_evaluation(config)))
    more.extend(skipping_findings(units, config, skipped_units))
    more.extend(without_forward(model, units, skipped_units))
    parallel, parallel_findings = check_parallelism(model, units, config, mesh)
    units = _with_estimates(model, units, config, mesh_shape)
    recomputed = _recomputed(activation_checkpointing, framework)
    return ShardPlan(
        units=units,
        config=config,
        mesh_shape=mesh_shape,
        ties=tuple(find_ties(model, members)),
        ignored=_ignored_parameters(model, request),
        ignored_modules=tuple(fqn for fqn, each in model.named_modules() if each in request.ignored_modules),
        full_precision=full_precision,
        findings=(*_of_this_model(findings, full_precision), *more, *parallel_findings),
        parallel=parallel,
        checkpointing=plan_if_chosen(model, recomputed, config.auto_wrap_policy),
        skipped_units=skipped_units,
    )


def _ignored_parameters(model: nn.Module, request: WrapRequest) -> tuple[str, ...]:
    named = parameter_names(model).items()
    return tuple(names[0] for param, names in named if param in request.ignored_params)


def _check_tied(tied: str) -> None:
    check_arguments(TEXT, tied=tied)
    if tied not in get_args(TieOwner):
        msg = f"`tied` is {tied!r}; expected 'parent' or 'group'."
        raise ConfigError(msg, field="tied")


def _recomputed(asked: Any, framework: FrameworkConfig | None) -> Any:
    """Return the layers to recompute: those that were asked for, or those of a framework's config."""
    return framework.activation_checkpointing if asked is None and framework is not None else asked


def _with_estimates(
    model: nn.Module, units: tuple[UnitPlan, ...], config: FSDP2Config, shape: tuple[int, int]
) -> tuple[UnitPlan, ...]:
    named = dict(model.named_parameters(remove_duplicate=False))
    ranks = shape[0] * shape[1]
    others = {"shard": (1, ranks), "replicate": (ranks, 1), "hybrid": shape}
    return tuple(
        replace(
            unit,
            bytes=estimate_unit(
                [named[name] for name in unit.parameters],
                unit.mp_policy,
                shape if unit.config.mesh == config.mesh else others[unit.config.mesh],
                gathers_again=unit.frees_after_forward,
            ),
        )
        for unit in units
    )


def _mesh_shape(
    config: FSDP2Config, mesh: DeviceMesh | None, world_size: int | None, per_node: int | None
) -> tuple[int, int]:
    given = mesh if mesh is not None else config.device_mesh
    resolve.resolve_device_type(config)  # a text that is no device is told on a machine without one, too
    if given is not None:
        if not isinstance(given, DeviceMesh):
            msg = f"`mesh` is {given!r:.100}; expected a DeviceMesh, such as `root['dp']`."
            raise ConfigError(msg, field="mesh")
        return _shape_of_mesh(config, given)
    if world_size is None and not dist.is_initialized():
        msg = (
            "There is no process group. Start with torchrun and call "
            "`torch.distributed.init_process_group()` first, or give `world_size` to plan without one."
        )
        raise ProcessGroupError(msg)
    if config.process_group is not None and world_size is None:
        groups = config.process_group
        _check_groups(groups)
        if isinstance(groups, (tuple, list)):
            # FSDP1's pair is (shard, replicate).
            return dist.get_world_size(groups[1]), dist.get_world_size(groups[0])
        size = dist.get_world_size(groups)
        return (size, 1) if config.mesh == "replicate" else (1, size)
    size = dist.get_world_size() if world_size is None else world_size
    if per_node is None and config.mesh == "hybrid":
        per_node = _devices_per_node(config)
    return resolve.resolve_mesh_shape(config.mesh, size, per_node or 1)


def _devices_per_node(config: FSDP2Config) -> int:
    """Count the devices of this machine, unless it stands for none of those that will train."""
    device_type = resolve.resolve_device_type(config)
    # A laptop that plans for a cluster would make each rank a node, without a word.
    if device_type == "cpu" and config.device_id is None and not dist.is_initialized():
        msg = (
            "HYBRID_SHARD makes one shard group of each node, and this machine, without an accelerator, does "
            "not tell how many devices a node has. Give `devices_per_node` (on the command line: "
            "`--devices-per-node`)."
        )
        raise ConfigError(msg, field="devices_per_node")
    return resolve.resolve_devices_per_node(device_type)


def _check_groups(groups: Any) -> None:
    """Check that groups are groups, and that a shard and a replicate group cross in this rank only."""
    several = groups if isinstance(groups, (tuple, list)) else (groups,)
    for group in several:
        if not isinstance(group, dist.ProcessGroup):
            msg = f"`process_group` holds {group!r:.100}; expected what `dist.new_group` returns."
            raise ConfigError(msg, field="process_group")
    ranks = [dist.get_process_group_ranks(group) for group in several]
    if len(ranks) == 2 and set(ranks[0]) & set(ranks[1]) != {dist.get_rank()}:
        msg = (
            f"`process_group` is the shard group {ranks[0]} and the replicate group {ranks[1]} of rank "
            f"{dist.get_rank()}: both may have that rank in common, and no other."
        )
        raise ConfigError(msg, field="process_group")


def _shape_of_mesh(config: FSDP2Config, mesh: DeviceMesh) -> tuple[int, int]:
    if mesh.ndim == 1 and config.mesh != "hybrid":
        return (mesh.size(), 1) if config.mesh == "replicate" else (1, mesh.size())
    if mesh.ndim == 2 and config.mesh != "shard" and (config.mesh == "hybrid" or mesh.size(1) == 1):
        return mesh.size(0), mesh.size(1)
    expected = {"shard": "1-D", "hybrid": "2-D (replicate, shard)", "replicate": "1-D or (world size, 1)"}
    msg = (
        f"The mesh has the shape {tuple(mesh.shape)}; this sharding strategy expects {expected[config.mesh]}."
    )
    raise ConfigError(msg, field="mesh")


def _lone_replicas(config: FSDP2Config, shape: tuple[int, int]) -> Iterator[Finding]:
    """Tell of FSDP1's slip: over a shard group of one rank it goes to NO_SHARD, within that group of one."""
    if config.mesh == "hybrid" and shape[0] > 1 and shape[1] == 1:
        text = (
            f"The shard groups have one rank each. FSDP1 switches to NO_SHARD there, over that one rank: its "
            f"{shape[0]} replicas trained apart from each other. FSDP2 averages their gradients."
        )
        hint = "A checkpoint of the FSDP1 run holds one of the replicas. For full sharding take FULL_SHARD."
        yield make_finding("FM107", "sharding_strategy", text, hint)


def _of_this_model(findings: Iterable[Finding], full_precision: tuple[str, ...]) -> Iterator[Finding]:
    """Say of modules that would stay in full precision if the model has none: FSDP1 names some by default."""
    for finding in findings:
        if finding.code == "FM016" and not full_precision:
            yield make_finding("FM016", finding.subject, "The model has no module of these classes.")
        else:
            yield finding


def _full_precision_modules(model: nn.Module, config: FSDP2Config) -> Iterator[str]:
    classes = resolve_classes(config.full_precision_classes, model, required=False)
    for fqn, module in model.named_modules():
        if isinstance(module, classes):
            yield fqn


def _checked_request(model: nn.Module, given: FSDP1Config, config: FSDP2Config) -> WrapRequest:
    check_model(model)
    request = wrap_request(model, given, config)
    left_out = stored_as_integers(model)
    check_can_ignore(config, request.ignored_params - left_out)
    check_left_out(left_out)
    check_parameters(model, request.ignored_params, request.ignored_modules)
    return request


def wrap_request(model: nn.Module, given: FSDP1Config, config: FSDP2Config) -> WrapRequest:
    """Return what a policy is evaluated with, by the arguments and what they became."""
    modules, params = resolve_ignored(model, config)
    return WrapRequest(
        policy=config.auto_wrap_policy,
        full_precision_classes=None if given.mixed_precision is None else config.full_precision_classes,
        ignored_modules=modules,
        ignored_params=params | stored_as_integers(model),
    )


def _classes_of(policy: Any) -> set[Any] | frozenset[Any] | list[Any] | tuple[Any, ...] | None:
    """Return the classes that torch's own policies look for; None for other policies."""
    found = getattr(policy, "_module_classes", None)
    found = getattr(policy, "keywords", {}).get("transformer_layer_cls") if found is None else found
    return found if isinstance(found, (set, frozenset, list, tuple)) else None


def _names_of(policy: Any) -> str:
    found = _classes_of(policy)
    if found is None:
        return ""
    return f", of {_listed(getattr(item, '__name__', str(item)) for item in found)},"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(set(names))[:12])


def _check_wrapped(
    model: nn.Module, policy: Any, units: tuple[UnitPlan, ...], findings: list[Finding]
) -> None:
    """Refuse a policy that selects nothing; by size that can be meant, so it is only told."""
    if policy is None or len(units) > 1 or getattr(policy, "may_select_nothing", False):
        return
    if any(finding.code in {"FM101", "FM103"} for finding in findings):
        return
    size = getattr(policy, "func", policy) is size_based_auto_wrap_policy or isinstance(policy, SizeWrap)
    found = _classes_of(policy)
    if found is not None and not found:
        text = "The policy names no class: the whole model is one unit, as in FSDP1."
        findings.append(make_finding("FM105", "auto_wrap_policy", text))
        return
    if not size:
        classes = _listed(type(module).__name__ for module in model.modules())
        msg = (
            f"The `auto_wrap_policy`{_names_of(policy)} selects no module of the model, so the whole model "
            f"would be one unit. The model's classes are {classes}. "
            "Name some of these, or give None if one unit is meant."
        )
        raise WrapPolicyError(msg)
    text = "No module is large enough to be a unit of its own: the whole model is one, as in FSDP1."
    findings.append(make_finding("FM105", "auto_wrap_policy", text))


def _trained_ignored(request: WrapRequest) -> Iterator[Finding]:
    count = sum(param.requires_grad for param in request.ignored_params)
    if count:
        text = (
            f"{counted(count, 'ignored parameter')} to be trained: plain tensors beside DTensors, which "
            "foreach and fused optimizers and `torch.nn.utils.clip_grad_norm_` refuse to mix."
        )
        hint = (
            "`foreach` and `fused` are switched off before a step where one group holds both kinds. "
            "`fsdp_migrate.runtime.clip_grad_norm_` takes both kinds."
        )
        yield make_finding("FM106", "ignored_states", text, hint)


def _sharded_parameters(model: nn.Module, request: WrapRequest) -> dict[str, nn.Parameter]:
    named = model.named_parameters()
    return {name: param for name, param in named if param not in request.ignored_params}


def _strided(params: Mapping[str, nn.Parameter]) -> Iterator[Finding]:
    names = [name for name, param in params.items() if not param.is_contiguous()]
    if names:
        text = (
            f"Not contiguous (channels-last, transposed): {counted(len(names), 'parameter')}, such as "
            f"`{names[0]}`. FSDP1 kept strides; here they become contiguous. Values are the same; "
            "kernels may sum in another order, so that the last bits differ."
        )
        hint = "Inputs may stay channels-last: convolutions give outputs of their layout."
        yield make_finding("FM109", "the model", text, hint)


def _full_precision_evaluation(config: FSDP2Config) -> Iterator[Finding]:
    """Tell of FSDP1's environment variable that FSDP2 has nothing for."""
    low = config.mp_policy.param_dtype
    if os.environ.get(FULL_PRECISION_EVALUATION) == "1" and low not in {None, "float32"}:
        text = (
            f"FSDP1 evaluated in the parameters' own precision (`model.eval()`); FSDP2 evaluates in {low}, "
            "as it trains. Training is the same."
        )
        hint = (
            "For the same evaluation load `fsdp_migrate.runtime.full_state_dict` into a model of its own; or "
            "unset the variable to accept it."
        )
        yield make_finding("FM112", FULL_PRECISION_EVALUATION, text, hint)


def _check_reshard(number: bool | int, shards: int) -> None:
    if isinstance(number, bool):
        return
    # torch takes 1 for False, with a warning, and the number of all shards for True.
    if number < 2 or number >= shards or shards % number:
        msg = (
            f"`reshard_after_forward` is {number}; as a number it must divide the {shards} shards, and be "
            "neither 1 nor all of them. True frees parameters after forward, False keeps them."
        )
        raise ConfigError(msg, field="reshard_after_forward")
