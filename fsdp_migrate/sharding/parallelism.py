"""Tensor, sequence and expert parallelism before FSDP: which orders and meshes are right.

The order is torch's own (``torch.distributed.tensor.parallel``, torchtitan): first
``parallelize_module`` over one dimension of a named root mesh, then FSDP over another dimension of the same
root. Everything else fails late, by assertions of torch that differ from version to version, or is silent.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate

from fsdp_migrate.errors import ModelError, UnsupportedFeatureError
from fsdp_migrate.findings import Finding, counted, make_finding
from fsdp_migrate.torch_compat import device_meshes


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.placement_types import Placement

    from fsdp_migrate.config import FSDP2Config
    from fsdp_migrate.sharding.units import UnitPlan


HOW = (
    "Make one named root mesh, `mesh = init_device_mesh(device, (dp, tp), mesh_dim_names=('dp', 'tp'))`, "
    "parallelize over `mesh['tp']`, then pass `mesh=mesh['dp']`."
)


@dataclass(frozen=True)
class ParallelParameter:
    """A parameter that another parallelism has placed before FSDP.

    ``dims`` are the names of its mesh dimensions, ``placements`` what it is there. ``expert`` tells that its
    mesh joins ranks that have data of their own: expert parallelism; its gradients hold several ranks' data.
    """

    name: str
    unit: str
    dims: tuple[str, ...]
    placements: tuple[str, ...]
    expert: bool

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain JSON data."""
        return asdict(self)


@dataclass(frozen=True)
class Placed:
    """Where a DTensor lies: the names (if any) and sizes of its mesh's dimensions, and what it is on each."""

    dims: tuple[str, ...]
    sizes: tuple[int, ...]
    placements: tuple[Placement, ...]

    @classmethod
    def of(cls, parameter: DTensor) -> Placed:
        """Return where a parameter lies."""
        mesh = parameter.device_mesh
        return cls(_names(mesh), tuple(mesh.shape), tuple(parameter.placements))


def parallel_placement(parameter: Any) -> Placed | None:
    """Return where another parallelism has placed a parameter; None for a plain one."""
    return Placed.of(parameter) if isinstance(parameter, DTensor) else None


def resolve_unit_mesh(config: FSDP2Config, root: FSDP2Config, mesh: DeviceMesh | None) -> DeviceMesh | None:
    """Return the mesh object that a unit is given: its policy's own, else the call's; None: made later."""
    if has_own_mesh(config, root):
        own: DeviceMesh | None = config.device_mesh
        return own
    return mesh if mesh is not None else root.device_mesh


def has_own_mesh(config: FSDP2Config, root: FSDP2Config) -> bool:
    """Tell whether the auto-wrap policy gives a unit another mesh or group than the root has."""
    return config.device_mesh is not root.device_mesh or config.process_group is not root.process_group


def check_parallelism(
    model: nn.Module,
    units: Sequence[UnitPlan],
    root: FSDP2Config,
    mesh: DeviceMesh | None,
) -> tuple[tuple[ParallelParameter, ...], list[Finding]]:
    """Check every DTensor parameter against the mesh that its unit is to be sharded on.

    Args:
        model: The model, parallelized and not sharded.
        units: Its units, as planned.
        root: The config of the root unit.
        mesh: The mesh that the call was given.

    Raises:
        ModelError: A mesh, an order of dimensions or a placement with which FSDP cannot be combined, or a tie
            that tensor parallelism has torn.
        UnsupportedFeatureError: A combination that this torch cannot do.
    """
    check_declared_ties(model)
    if not any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        return (), []
    named: dict[str, Any] = dict(model.named_parameters(remove_duplicate=False))
    data_ranks = _data_ranks(root, mesh)
    found: list[ParallelParameter] = []
    for unit in units:
        placed = [(name, named[name]) for name in unit.parameters if isinstance(named[name], DTensor)]
        if not placed:
            continue
        unit_mesh = resolve_unit_mesh(unit.config, root, mesh)
        for name, parameter in placed:
            expert = _is_expert(parameter, data_ranks)
            _check_parameter(name, parameter, unit, unit_mesh, expert=expert)
            found.append(_describe(name, parameter, unit, expert=expert))
        if unit_mesh is not None:
            experts = {name for name, parameter in placed if _is_expert(parameter, data_ranks)}
            _check_experts(unit, {name: named[name] for name in experts}, unit_mesh, data_ranks)
    return tuple(found), list(_findings(found, units, len(data_ranks)))


def _ranks(mesh: DeviceMesh) -> frozenset[int]:
    return frozenset(mesh.mesh.flatten().tolist())


def _data_ranks(root: FSDP2Config, mesh: DeviceMesh | None) -> frozenset[int]:
    """Return the ranks over which the root is sharded: each has data of its own."""
    given = resolve_unit_mesh(root, root, mesh)
    if given is not None:
        return _ranks(given)
    if root.process_group is None:
        return frozenset(range(dist.get_world_size()))
    groups = root.process_group if isinstance(root.process_group, (tuple, list)) else (root.process_group,)
    return frozenset(rank for group in groups for rank in dist.get_process_group_ranks(group))


def _is_expert(parameter: Any, data_ranks: frozenset[int]) -> bool:
    # Tensor parallelism joins ranks of the same data, one of which is among these; experts join ranks of
    # other data.
    return len(_ranks(parameter.device_mesh) & data_ranks) > 1


def _describe(name: str, parameter: Any, unit: UnitPlan, *, expert: bool) -> ParallelParameter:
    dims = parameter.device_mesh.mesh_dim_names or ()
    placements = tuple(str(placement) for placement in parameter.placements)
    return ParallelParameter(name, unit.fqn, tuple(dims), placements, expert)


def _check_parameter(
    name: str, parameter: Any, unit: UnitPlan, mesh: DeviceMesh | None, *, expert: bool
) -> None:
    where = f"Parameter `{name}` is a DTensor over {_show(parameter.device_mesh)}"
    if parameter.is_meta and unit.config.param_init_fn is None:
        msg = (
            f"{where} on the meta device. Give the model memory and values before prepare_fully_shard: "
            "`model.to_empty(device=...)`, then its initialisation. Or pass a `param_init_fn` that does so."
        )
        raise UnsupportedFeatureError(msg, feature="meta device with tensor parallel")
    if mesh is None:
        msg = f"{where}, and FSDP was not told its own mesh. {HOW}"
        raise ModelError(msg, fqn=name)
    shared = _ranks(parameter.device_mesh) & _ranks(mesh)
    if len(shared) > 1:
        msg = f"{where}, and unit `{unit.fqn}` would be sharded over {_show(mesh)}: both hold ranks "
        msg += f"{sorted(shared)}. " + (_expert_hint() if expert and mesh.size() > 1 else HOW)
        raise ModelError(msg, fqn=name)
    if unit.config.mesh == "replicate" and mesh.ndim == 1:
        msg = (
            f"{where}, and NO_SHARD needs a mesh that can be sliced from the same root. Add a dimension of "
            "one shard, `mesh_dim_names=('dp_replicate', 'dp_shard', 'tp')`, and pass the first two."
        )
        raise ModelError(msg, fqn=name)
    if mesh.mesh_dim_names is None or parameter.device_mesh.mesh_dim_names is None:
        msg = f"{where}, and FSDP's mesh is {_show(mesh)}: both must have names. {HOW}"
        raise ModelError(msg, fqn=name)
    _check_roots(name, where, parameter.device_mesh, mesh)
    _check_placements(name, where, parameter, mesh)


def _check_roots(name: str, where: str, own: DeviceMesh, mesh: DeviceMesh) -> None:
    root = device_meshes.root_mesh(mesh)
    if not device_meshes.have_one_root(mesh, own):
        msg = (
            f"{where}, but FSDP's mesh is {_show(mesh)}, a part of {_show(root)}. Both must be slices of one "
            f"root mesh. {HOW}"
        )
        raise ModelError(msg, fqn=name)
    order = list(root.mesh_dim_names or ())
    dims = [order.index(dim) for dim in (*_names(mesh), *_names(own)) if dim in order]
    if dims != sorted(dims) and not device_meshes.HAS_ANY_DIM_ORDER:
        msg = (
            f"{where}, and FSDP's mesh is {_show(mesh)}, but the root mesh has the order {tuple(order)}. On "
            f"this torch the data-parallel dimensions must come first. {HOW}"
        )
        raise ModelError(msg, fqn=name)


def _check_placements(name: str, where: str, parameter: DTensor, mesh: DeviceMesh) -> None:
    if any(placement.is_partial() for placement in parameter.placements):
        msg = f"{where} with the placements {parameter.placements}; a parameter cannot be partial."
        raise ModelError(msg, fqn=name)
    limit = device_meshes.MAX_PARALLEL_DIMS
    if parameter.device_mesh.ndim > limit:
        msg = f"{where}; with FSDP it may have {limit} dimension{'s' if limit > 1 else ''} on this torch."
        raise UnsupportedFeatureError(msg, feature="tensor parallel over several dimensions")
    parts = _parts_of_rows(parameter)
    shards = mesh.size(mesh.ndim - 1)
    if parts > 1 and parameter.shape[0] % (parts * shards) and not device_meshes.HAS_UNEVEN_STRIDED:
        msg = (
            f"{where}, which cuts its {parameter.shape[0]} rows into {parts}; FSDP would cut them into "
            f"{parts * shards}, which does not go evenly, and this torch gathers uneven rows wrongly or not "
            f"at all. Pad the layer to a multiple of {parts * shards} rows, or use torch 2.13 or later."
        )
        raise UnsupportedFeatureError(msg, feature="uneven tensor parallel")


def _parts_of_rows(parameter: DTensor) -> int:
    """Return into how many parts another parallelism has cut the parameter's first dimension."""
    parts = 1
    for dim, placement in enumerate(parameter.placements):
        if device_meshes.shard_dim(placement) == 0:
            parts *= parameter.device_mesh.size(dim)
    return parts


def _check_experts(
    unit: UnitPlan, experts: Mapping[str, Any], mesh: DeviceMesh, data_ranks: frozenset[int]
) -> None:
    if not experts:
        return
    others = [name for name in unit.parameters if name not in experts]
    if others:
        msg = (
            f"Unit `{unit.fqn}` holds expert-parallel parameters, and is sharded over {mesh.size()} of "
            f"{len(data_ranks)} data-parallel ranks, but `{others[0]}` in it is not expert-parallel: its "
            f"gradient would miss the other ranks. {_expert_hint()}"
        )
        raise ModelError(msg, fqn=others[0])
    for name, parameter in experts.items():
        # The ranks of its own mesh have other data each, and the unit's mesh averages over more of them.
        reached = mesh.size() * len(_ranks(parameter.device_mesh) & data_ranks)
        if reached != len(data_ranks):
            msg = (
                f"Expert-parallel parameter `{name}` would be averaged over {reached} ranks, but there are "
                f"{len(data_ranks)} data-parallel ranks. {_expert_hint()}"
            )
            raise ModelError(msg, fqn=name)
    if not device_meshes.HAS_GRADIENT_DIVISOR:
        msg = f"Unit `{unit.fqn}` is expert-parallel, whose gradients this torch cannot scale; 2.7 can."
        raise UnsupportedFeatureError(msg, feature="expert parallel")


def _expert_hint() -> str:
    return (
        "Experts are a unit of their own on the data-parallel ranks that hold the same experts: "
        "`auto_wrap_policy=CustomPolicy(lambda module: {'device_mesh': mesh['dp_mod_ep']} if "
        "isinstance(module, Experts) else isinstance(module, Block))`."
    )


def check_declared_ties(model: nn.Module) -> None:
    """Check that input and output embeddings that the model's config ties are still one parameter.

    Tensor parallelism replaces each module's parameter by another one, so that a tie is lost without a word.
    transformers' models declare theirs, and so can be asked.

    Raises:
        ModelError: They are not, and one of them at least is a DTensor.
    """
    if getattr(getattr(model, "config", None), "tie_word_embeddings", False) is not True:
        return
    weights = []
    for getter in ("get_input_embeddings", "get_output_embeddings"):
        ask = getattr(model, getter, None)
        weights.append(getattr(ask() if callable(ask) else None, "weight", None))
    first, second = weights
    if first is None or second is None or first is second:
        return
    if isinstance(first, DTensor) or isinstance(second, DTensor):
        msg = (
            "`config.tie_word_embeddings` is true, but input and output embeddings are two parameters: "
            "tensor parallelism has untied them. Use `fsdp_migrate.tensor_parallel.apply_tensor_parallel`, "
            "which keeps ties, or tie them again before prepare_fully_shard."
        )
        raise ModelError(msg)


def _findings(
    found: Sequence[ParallelParameter], units: Sequence[UnitPlan], num_ranks: int
) -> Iterator[Finding]:
    if not found:
        return
    tensor = [parallel for parallel in found if not parallel.expert]
    if tensor:
        dims = " and ".join(sorted({f"`{dim}`" for parallel in tensor for dim in parallel.dims}))
        placed = counted(len(tensor), "parameter")
        text = f"{placed} over {dims} already; each part is sharded over the FSDP mesh."
        yield make_finding("FM120", "mesh", text)
    experts = [parallel for parallel in found if parallel.expert]
    if experts:
        names = ", ".join(f"`{name}`" for name in dict.fromkeys(parallel.unit for parallel in experts))
        text = f"{names}: gradients are divided by all {num_ranks} data-parallel ranks, whose data they hold."
        yield make_finding("FM121", "mesh", text)
    total = sum(len(unit.parameters) for unit in units)
    if len({parallel.dims for parallel in found}) + (len(found) < total) > 1:
        text = "The parameters lie on several meshes, which `torch.nn.utils.clip_grad_norm_` does not mix."
        hint = "`fsdp_migrate.runtime.clip_grad_norm_` takes them together."
        options = device_meshes.OPTIONS_OF_ONE_MESH
        if options:
            text += f" Nor do {' and '.join(options)} optimizers on this torch."
            hint += f" Those given are set to {' and '.join(f'`{name}=False`' for name in options)}."
        yield make_finding("FM122", "mesh", text, hint)


def expected_placement(before: Placed | None, mesh: DeviceMesh) -> Placed:
    """Return where a parameter lies after FSDP.

    FSDP's dimensions come first. Over them rows are sharded, beneath replicas if there are any; where another
    parallelism has cut the rows already, FSDP cuts each part, which torch writes as a strided shard. What the
    other parallelism did stays.

    Args:
        before: Where the parameter lay before FSDP, or None if it was a plain tensor.
        mesh: The mesh that its unit was sharded on.
    """
    rest = before or Placed((), (), ())
    parts = 1
    for size, placement in zip(rest.sizes, rest.placements, strict=True):
        if device_meshes.shard_dim(placement) == 0:
            parts *= size
    replicas: tuple[Placement, ...] = (Replicate(),) * (mesh.ndim - 1)
    return Placed(
        (*_names(mesh), *rest.dims),
        (*mesh.shape, *rest.sizes),
        (*replicas, device_meshes.sharded_over(0, parts), *rest.placements),
    )


def _names(mesh: DeviceMesh) -> tuple[str, ...]:
    return tuple(mesh.mesh_dim_names or ())


def _show(mesh: DeviceMesh) -> str:
    if mesh.mesh_dim_names is None:
        return f"a mesh of the shape {tuple(mesh.shape)} without names"
    sizes = zip(mesh.mesh_dim_names, mesh.shape, strict=True)
    return "the mesh (" + ", ".join(f"{name}={size}" for name, size in sizes) + ")"
