"""torch's ``parallelize_module``, checked: the order, the mesh, the names, and ties, which it would tear."""

from __future__ import annotations

import copy
import fnmatch
from typing import TYPE_CHECKING, TypeVar

from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module

from fsdp_migrate import words
from fsdp_migrate.errors import ConfigError, ModelError
from fsdp_migrate.sharding.parallelism import HOW, Placed
from fsdp_migrate.sharding.tying import parameter_names
from fsdp_migrate.torch_compat import device_meshes, module_kinds


if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.parallel import ParallelStyle


ModelT = TypeVar("ModelT", bound=nn.Module)

_TORCHS_OWN = (AssertionError, NotImplementedError, RuntimeError, TypeError, UserWarning, ValueError)
"""What torch raises where a style does not fit its module."""

ORDER = "The order is: tensor parallel, activation checkpointing, torch.compile, prepare_fully_shard."


def apply_tensor_parallel(model: ModelT, mesh: DeviceMesh, plan: Mapping[str, ParallelStyle]) -> ModelT:
    """Parallelize modules over one mesh dimension by torch's ``parallelize_module``, all of them or none.

    What torch lets pass is an error here: a name that matches no module (torch warns and goes on), an order
    that leaves hooks unseen or parameters sharded twice, and a tie that the plan would tear (torch replaces
    each module's parameter by another one). Ties whose parameters the plan places alike are tied again. Call
    it first of all; then checkpoint, compile, and shard with
    :func:`~fsdp_migrate.prepare_fully_shard`, passing another dimension of the same root mesh. All
    ranks must call it.

    Changes: the parameters of the planned modules become DTensors over the mesh, and the modules get hooks.
    Leaves alone: every other module, names, ties, and on an error the whole model.

    Args:
        model: The model, neither sharded nor compiled.
        mesh: One named dimension of a root mesh: ``mesh["tp"]``.
        plan: The style of each module, by its name or by a pattern: ``{"blocks.*.up": ColwiseParallel()}``.

    Returns:
        The same model.

    Raises:
        ConfigError: A name of the plan matches no module, or two match one; or the mesh is not one dimension
            of a named root.
        ModelError: The model is sharded, compiled or parallelized already, a style does not fit its module,
            or a tie would be torn.

    Example:
        >>> import torch.distributed as dist
        >>> from torch.distributed.device_mesh import init_device_mesh
        >>> from torch.distributed.tensor.parallel import ColwiseParallel
        >>> from fsdp_migrate.runtime import end_process_group
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))
        >>> model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        >>> model = apply_tensor_parallel(model, mesh["tp"], {"0": ColwiseParallel()})
        >>> model[0].weight.placements
        (Shard(dim=0),)
        >>> end_process_group()
    """
    _check_mesh(mesh)
    styles = _resolve_names(model, plan)
    _check_model(model)
    before = parameter_names(model)
    undo = _Undo(model)
    try:
        for name, style in styles.items():
            parallelize_module(model.get_submodule(name), mesh, style)
        _tie_again(model, before)
    except BaseException as error:
        undo()
        if isinstance(error, _TORCHS_OWN) and not isinstance(error, ModelError):
            msg = f"Tensor parallelism cannot be applied, and nothing of it was: {error}"
            raise ModelError(msg) from error
        raise
    return model


def _check_mesh(mesh: DeviceMesh) -> None:
    root = device_meshes.root_mesh(mesh)
    if mesh.ndim != 1 or mesh.mesh_dim_names is None or root.ndim == 1 or root.mesh_dim_names is None:
        names = mesh.mesh_dim_names or "no names"
        msg = (
            f"The mesh has the shape {tuple(mesh.shape)} and {names}, and its root the shape "
            f"{tuple(root.shape)}; expected one named dimension of a root mesh with another for FSDP. {HOW}"
        )
        raise ConfigError(msg, field="mesh")


def _resolve_names(model: nn.Module, plan: Mapping[str, ParallelStyle]) -> dict[str, ParallelStyle]:
    """Return the style of each module by its full name.

    Up to torch 2.7 ``parallelize_module`` takes the later parts of a pattern for names at the top, too.
    """
    names = [name for name, _ in model.named_modules()]
    asked: dict[str, str] = {}
    for key in plan:
        parts = key.split(".")
        found = [name for name in names if _matches(name.split("."), parts)]
        twice = next((name for name in found if name in asked), None)
        if twice is not None:
            msg = (
                f"`{twice}` is matched twice by the tensor-parallel plan: by `{asked[twice]}` and by `{key}`."
            )
            raise ConfigError(msg, field="plan")
        asked.update(dict.fromkeys(found, key))
        if not found:
            near = words.closest(key, names)
            msg = (
                f"`{key}` of the tensor-parallel plan matches no module.{near} Names are those of "
                "`model.named_modules()`, and `*` stands for one part of a name."
            )
            raise ConfigError(msg, field="plan")
    return {name: plan[key] for name, key in asked.items()}


def _matches(name: list[str], pattern: list[str]) -> bool:
    return len(name) == len(pattern) and all(map(fnmatch.fnmatch, name, pattern))


def _check_model(model: nn.Module) -> None:
    for fqn, module in model.named_modules():
        where = f"`{fqn}`" if fqn else "The model"
        if isinstance(module, FSDPModule) or module_kinds.is_fsdp1_module(module):
            msg = f"{where} is sharded by FSDP already; tensor parallelism comes before. {ORDER}"
            raise ModelError(msg, fqn=fqn)
        if module_kinds.is_compiled(module):
            msg = f"{where} is compiled already, and would not see the hooks of tensor parallelism. {ORDER}"
            raise ModelError(msg, fqn=fqn)


def _tie_again(model: nn.Module, before: Mapping[nn.Parameter, tuple[str, ...]]) -> None:
    """Make names that were one parameter one again, where they are placed alike."""
    for names in before.values():
        now = {name: model.get_parameter(name) for name in names}
        first = now[names[0]]
        placed = {name: Placed.of(p) if isinstance(p, DTensor) else None for name, p in now.items()}
        if len(set(placed.values())) > 1:
            shown = ", ".join(
                f"`{name}` {'plain' if where is None else 'as ' + ', '.join(map(str, where.placements))}"
                for name, where in placed.items()
            )
            msg = (
                f"{' and '.join(f'`{name}`' for name in names)} are one parameter, and the plan would place "
                f"{shown}. Give all of them styles that place it alike (RowwiseParallel for an embedding, "
                "ColwiseParallel for the output layer), or none, or untie them."
            )
            raise ModelError(msg, fqn=names[0])
        for name in names[1:]:
            owner, _, attribute = name.rpartition(".")
            if now[name] is not first:
                setattr(model.get_submodule(owner), attribute, first)


class _Undo:
    """Puts a model's modules back to what they were: parameters, hooks and attributes."""

    def __init__(self, model: nn.Module) -> None:
        self._modules = list(model.modules())
        self._saved = [dict(vars(module)) for module in self._modules]
        # Hooks are removed by handles that know their table, so the tables themselves are kept.
        self._tables = [
            {key: copy.copy(value) for key, value in saved.items() if isinstance(value, dict)}
            for saved in self._saved
        ]

    def __call__(self) -> None:
        for module, saved, tables in zip(self._modules, self._saved, self._tables, strict=True):
            vars(module).clear()
            vars(module).update(saved)
            for key, content in tables.items():
                saved[key].clear()
                saved[key].update(content)
