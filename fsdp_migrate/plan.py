"""The plan: which modules become units, with which settings, before anything is touched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch import nn

from fsdp_migrate import resolve, torch_compat
from fsdp_migrate.check import check_model, check_units
from fsdp_migrate.config import FSDP1Config, FSDP2Config, MixedPrecisionPolicy, read_wrap_policy
from fsdp_migrate.errors import ConfigError, ProcessGroupError, UnsupportedFeatureError
from fsdp_migrate.findings import Finding, make_finding
from fsdp_migrate.mapping import map_config
from fsdp_migrate.tying import Tie, find_ties, parameter_names
from fsdp_migrate.wrap import WrapRequest, WrapUnit, find_units, resolve_classes


if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True)
class UnitPlan:
    """One unit: its module's name (empty for the root), what it manages, and how.

    ``parameters`` are names in the model; ``numel`` counts their elements, unsharded.
    """

    fqn: str
    module_class: str
    parameters: tuple[str, ...]
    numel: int
    config: FSDP2Config
    full_precision: bool = False

    @property
    def is_root(self) -> bool:
        """Whether this is the unit of the whole model."""
        return not self.fqn

    @property
    def reshard_after_forward(self) -> bool | int | None:
        """What ``fully_shard`` is told; None: torch's default, which keeps the root's parameters."""
        return self.config.root_reshard_after_forward if self.is_root else self.config.reshard_after_forward

    @property
    def mp_policy(self) -> MixedPrecisionPolicy:
        """The unit's mixed precision."""
        if self.full_precision:
            return MixedPrecisionPolicy(cast_forward_inputs=False)
        return self.config.root_mp_policy if self.is_root else self.config.mp_policy


@dataclass(frozen=True)
class ShardPlan:
    """What :func:`~fsdp_migrate.prepare.prepare_fully_shard` does to a model. Pure data, by name.

    ``units`` are in the order in which they are sharded: inner ones first, the root last. ``mesh_shape`` is
    (replicas, shards). ``ignored`` and ``ignored_modules`` are the names of what is left alone,
    ``full_precision`` those of the modules that stay out of mixed precision, units or not.
    """

    units: tuple[UnitPlan, ...]
    config: FSDP2Config
    mesh_shape: tuple[int, int]
    ties: tuple[Tie, ...]
    ignored: tuple[str, ...]
    ignored_modules: tuple[str, ...]
    full_precision: tuple[str, ...]
    findings: tuple[Finding, ...]

    @property
    def root(self) -> UnitPlan:
        """The unit of the whole model."""
        return self.units[-1]

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as plain JSON data."""
        return {
            "mesh_shape": list(self.mesh_shape),
            "units": [
                {
                    "fqn": unit.fqn,
                    "class": unit.module_class,
                    "parameters": list(unit.parameters),
                    "numel": unit.numel,
                    "reshard_after_forward": unit.reshard_after_forward,
                    "mp_policy": unit.mp_policy.model_dump(),
                }
                for unit in self.units
            ],
            "ties": [asdict(tie) for tie in self.ties],
            "ignored": list(self.ignored),
            "full_precision": list(self.full_precision),
            "findings": [finding.as_dict() for finding in self.findings],
        }


def read_config(fsdp1_config: Any) -> FSDP1Config:
    """Read what stands for an FSDP1 config: the model itself, or a mapping of FSDP's keyword arguments.

    Raises:
        ConfigError: It is neither, or holds something unknown.
    """
    if isinstance(fsdp1_config, FSDP1Config):
        return fsdp1_config
    if fsdp1_config is None:
        return FSDP1Config()
    if isinstance(fsdp1_config, Mapping):
        return FSDP1Config(**fsdp1_config)
    kind = type(fsdp1_config)
    msg = (
        f"`fsdp1_config` is a {kind.__module__}.{kind.__qualname__}, which is not read yet. "
        "Pass the keyword arguments of FullyShardedDataParallel as a dict, or an FSDP1Config."
    )
    raise ConfigError(msg, field="fsdp1_config")


def plan_fully_shard(
    model: nn.Module,
    fsdp1_config: Any,
    *,
    mesh: DeviceMesh | None = None,
    world_size: int | None = None,
    auto_wrap_policy: Any = None,
) -> ShardPlan:
    """Plan what :func:`prepare_fully_shard` would do, changing nothing.

    Args:
        model: The model, as it would be given to ``FullyShardedDataParallel``.
        fsdp1_config: Its FSDP1 arguments: an :class:`FSDP1Config`, or a mapping of keyword arguments.
        mesh: The mesh to shard on, in place of the config's.
        world_size: The number of ranks. With it no process group is needed.
        auto_wrap_policy: A policy in place of the config's.

    Raises:
        ConfigError: An argument means nothing, or contradicts another.
        WrapPolicyError: The policy cannot be evaluated on this model.
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
    given = read_config(fsdp1_config)
    if auto_wrap_policy is not None:
        given = FSDP1Config(**{**_given(given), "auto_wrap_policy": read_wrap_policy(auto_wrap_policy)})
    config, findings = map_config(given)
    mesh_shape = _mesh_shape(config, mesh, world_size)
    check_model(model)
    request = _wrap_request(model, given, config)
    found = find_units(model, request)
    units, more = _plan_units(model, given, found, request)
    ties = tuple(find_ties(model, {model.get_submodule(unit.fqn): unit.fqn for unit in units}))
    check_units(model, units, ties, request.ignored_params)
    return ShardPlan(
        units=units,
        config=config,
        mesh_shape=mesh_shape,
        ties=ties,
        ignored=tuple(
            names[0] for param, names in parameter_names(model).items() if param in request.ignored_params
        ),
        ignored_modules=tuple(
            fqn for fqn, module in model.named_modules() if module in request.ignored_modules
        ),
        full_precision=tuple(_full_precision_modules(model, config)),
        findings=(*findings, *more),
    )


def _given(config: FSDP1Config) -> dict[str, Any]:
    return {name: getattr(config, name) for name in config.model_fields_set}


def _mesh_shape(config: FSDP2Config, mesh: DeviceMesh | None, world_size: int | None) -> tuple[int, int]:
    given = mesh if mesh is not None else config.device_mesh
    if given is not None:
        return _shape_of_mesh(config, given)
    if world_size is None and not dist.is_initialized():
        msg = (
            "There is no process group. Start with torchrun and call "
            "`torch.distributed.init_process_group()` first, or give `world_size` to plan without one."
        )
        raise ProcessGroupError(msg)
    if config.process_group is not None and world_size is None:
        groups = config.process_group
        if isinstance(groups, (tuple, list)):
            return dist.get_world_size(groups[1]), dist.get_world_size(groups[0])
        size = dist.get_world_size(groups)
        return (size, 1) if config.mesh == "replicate" else (1, size)
    size = dist.get_world_size() if world_size is None else world_size
    per_node = resolve.resolve_devices_per_node(resolve.resolve_device_type(config))
    return resolve.resolve_mesh_shape(config.mesh, size, per_node)


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


def _full_precision_modules(model: nn.Module, config: FSDP2Config) -> Iterator[str]:
    classes = resolve_classes(config.full_precision_classes, model, required=False)
    for fqn, module in model.named_modules():
        if isinstance(module, classes):
            yield fqn


def _wrap_request(model: nn.Module, given: FSDP1Config, config: FSDP2Config) -> WrapRequest:
    modules, params = _ignored(model, config)
    if params and not torch_compat.HAS_IGNORED_PARAMS:
        msg = "`ignored_modules` and `ignored_states` need torch 2.7 or later, whose fully_shard can ignore."
        raise UnsupportedFeatureError(msg, feature="ignored_states")
    return WrapRequest(
        policy=config.auto_wrap_policy,
        full_precision_classes=None if given.mixed_precision is None else config.full_precision_classes,
        ignored_modules=modules,
        ignored_params=params,
    )


def _ignored(model: nn.Module, config: FSDP2Config) -> tuple[frozenset[nn.Module], frozenset[nn.Parameter]]:
    """Return the ignored modules with all below them, and their parameters or those given by themselves."""
    name = "ignored_modules" if config.ignored_modules else "ignored_states"
    states = config.ignored_modules or config.ignored_states or ()
    kinds = (nn.Module,) if name == "ignored_modules" else (nn.Module, nn.Parameter)
    if isinstance(states, str) or any(isinstance(state, str) for state in states):
        msg = f"`{name}` holds names, which are not supported yet. Pass the modules or parameters themselves."
        raise UnsupportedFeatureError(msg, feature=name)
    for state in states:
        if not isinstance(state, kinds):
            expected = " and ".join(kind.__name__ for kind in kinds)
            msg = f"`{name}` holds a {type(state).__name__}; expected {expected} objects."
            raise ConfigError(msg, field=name)
    own = set(model.modules())
    modules = {child for state in states if isinstance(state, nn.Module) for child in state.modules()}
    params = {state for state in states if isinstance(state, nn.Parameter)}
    params.update(param for module in modules for param in module.parameters())
    strangers = [type(module).__name__ for module in modules - own]
    strangers += ["a parameter"] * len(params - set(model.parameters()))
    if strangers:
        msg = f"`{name}` holds what is not in the model: {', '.join(sorted(set(strangers)))}."
        raise ConfigError(msg, field=name)
    return frozenset(modules), frozenset(params)


def _plan_units(
    model: nn.Module, given: FSDP1Config, found: Iterable[WrapUnit], request: WrapRequest
) -> tuple[tuple[UnitPlan, ...], list[Finding]]:
    names = {param: all_names[0] for param, all_names in parameter_names(model).items()}
    claimed: set[nn.Parameter] = set(request.ignored_params)
    units: list[UnitPlan] = []
    containers: list[str] = []
    empty: list[str] = []
    findings: list[Finding] = []
    for unit in found:
        params = [param for param in unit.module.parameters() if param not in claimed]
        if unit.fqn and not params:
            empty.append(unit.fqn)
            continue
        if unit.fqn and not torch_compat.has_forward(unit.module):
            containers.append(unit.fqn)
            continue
        claimed.update(params)
        config, own = _unit_config(given, unit)
        findings.extend(own)
        units.append(
            UnitPlan(
                fqn=unit.fqn,
                module_class=type(unit.module).__name__,
                parameters=tuple(names[param] for param in params),
                numel=sum(param.numel() for param in params),
                config=config,
                full_precision=unit.full_precision and bool(unit.fqn),
            )
        )
    findings.extend(_left_out(containers, empty))
    return tuple(units), findings


def _unit_config(given: FSDP1Config, unit: WrapUnit) -> tuple[FSDP2Config, list[Finding]]:
    """Map the unit's own FSDP1 arguments, which ``CustomPolicy`` can give, over those of the whole."""
    if not unit.overrides:
        return map_config(given)[0], []
    config, findings = map_config(FSDP1Config(**{**_given(given), **unit.overrides}))
    own = [
        replace(finding, subject=f"auto_wrap_policy[{unit.fqn}].{finding.subject}")
        for finding in findings
        if finding.subject.partition(".")[0] in unit.overrides
    ]
    return config, own


def _left_out(containers: list[str], empty: list[str]) -> Iterator[Finding]:
    if containers:
        text = f"{_some(containers)}: FSDP2 hangs on `forward`, which a container has not."
        yield make_finding("FM101", "auto_wrap_policy", text)
    if empty:
        text = f"{_some(empty)}: selected, but without parameters that an inner unit has not."
        yield make_finding("FM102", "auto_wrap_policy", text)


def _some(names: list[str], limit: int = 4) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(f"`{name}`" for name in names[:limit]) + more
