"""Optimizers built before sharding: their parameters and state, moved to the sharded parameters."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from fsdp_migrate import torch_compat_parallel
from fsdp_migrate.errors import OptimizerError


if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import nn


_REPLACED = "_fsdp_migrate_replaced"
_checked: weakref.WeakSet[Optimizer] = weakref.WeakSet()
_is_watching = False


def check_optimizers(optimizers: Iterable[Optimizer], names: Mapping[nn.Parameter, tuple[str, ...]]) -> None:
    """Check that every parameter of the optimizers is the model's, before anything is changed.

    Raises:
        OptimizerError: Some are not; the message says which group they are in. Or something is no optimizer.
    """
    for position, optimizer in enumerate(optimizers):
        if not hasattr(optimizer, "param_groups"):
            msg = f"`optimizers` holds {optimizer!r:.100}; expected optimizers of torch's kind."
            raise OptimizerError(msg)
        for index, group in enumerate(optimizer.param_groups):
            strangers = [param for param in group["params"] if param not in names]
            if not strangers:
                continue
            shapes = ", ".join(str(list(param.shape)) for param in strangers[:4])
            msg = (
                f"Optimizer {position} ({type(optimizer).__name__}) has {len(strangers)} parameters in group "
                f"{index} that are not the model's, of the shapes {shapes}. "
                "Build it from this model's parameters, or shard the model that it belongs to."
            )
            raise OptimizerError(msg)


def repoint_optimizers(
    optimizers: Iterable[Optimizer],
    names: Mapping[nn.Parameter, tuple[str, ...]],
    sharded: Mapping[str, nn.Parameter],
) -> None:
    """Put the sharded parameters in the place of the old ones, by name.

    Groups, their order and their settings stay as they are, but for ``foreach`` and ``fused`` in groups that
    hold ignored parameters too, or several meshes, where torch cannot have them. State that has a
    parameter's shape is sharded like the parameter; other state, such as step counters, moves as it is.

    Args:
        optimizers: The optimizers, changed in place.
        names: The parameters of before, with their names.
        sharded: The parameters of now, by name.
    """
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["params"] = [sharded[names[param][0]] for param in group["params"]]
            _make_mixable(group)
        old_state: dict[Any, dict[str, Any]] = dict(optimizer.state)
        optimizer.state.clear()
        for param, state in old_state.items():
            new = sharded[names[param][0]] if param in names else param
            optimizer.state[new] = {key: _shard_like(value, param, new) for key, value in state.items()}


def watch_replaced(
    names: Mapping[nn.Parameter, tuple[str, ...]], sharded: Mapping[str, nn.Parameter]
) -> None:
    """Let an optimizer that still holds parameters from before sharding fail at its first step.

    FSDP1 with ``use_orig_params`` kept the parameters, so that an optimizer from before went on; FSDP2 puts
    others in their place, and such an optimizer would train nothing without a word. Each optimizer is looked
    at once, in the first step after a model was sharded, by torch's hook for the steps of all optimizers.

    Args:
        names: The parameters of before, with their names.
        sharded: The parameters of now, by name.
    """
    global _is_watching  # noqa: PLW0603
    for param, (name, *_) in names.items():
        if sharded[name] is not param:
            setattr(param, _REPLACED, name)
    _checked.clear()
    if not _is_watching:
        register_optimizer_step_pre_hook(_refuse_replaced)
        _is_watching = True


def _refuse_replaced(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """Check an optimizer before its step; all ranks that run the same code fail alike."""
    del args, kwargs
    if optimizer in _checked:
        return
    params = [param for group in optimizer.param_groups for param in group["params"]]
    old = [name for param in params if (name := getattr(param, _REPLACED, None)) is not None]
    if old:
        msg = (
            f"This {type(optimizer).__name__} holds {len(old)} parameters from before the model was sharded, "
            f"such as `{old[0]}`: it would train nothing. Give it to "
            "`prepare_fully_shard(..., optimizers=optimizer)`, or build it from the sharded model's "
            "parameters."
        )
        raise OptimizerError(msg)
    _checked.add(optimizer)


def _make_mixable(group: dict[str, Any]) -> None:
    """Switch ``foreach`` and ``fused`` off where they do not take tensors of several kinds or meshes."""
    meshes = {param.device_mesh if isinstance(param, DTensor) else None for param in group["params"]}
    if len(meshes) > 1:
        refused = ("foreach", "fused") if None in meshes else torch_compat_parallel.OPTIONS_OF_ONE_MESH
        group.update({name: False for name in refused if name in group})


def _shard_like(value: Any, old: torch.Tensor, new: torch.Tensor) -> Any:
    """Shard a state tensor of the old parameter's shape like the new parameter; without communication."""
    if not isinstance(value, torch.Tensor) or not isinstance(new, DTensor) or value.shape != old.shape:
        return value
    local = value.to_local() if isinstance(value, DTensor) else value.detach()
    # FSDP's dimensions come first; over those of another parallelism the old state is cut already.
    ours = new.device_mesh.ndim - (old.device_mesh.ndim if isinstance(old, DTensor) else 0)
    for dim, placement in enumerate(new.placements[:ours]):
        rows = torch_compat_parallel.shard_dim(placement)
        if rows is not None:
            chunks = local.chunk(new.device_mesh.size(dim), rows)
            mine = new.device_mesh.get_local_rank(dim)
            local = chunks[mine] if mine < len(chunks) else local.narrow(rows, 0, 0)
    return DTensor.from_local(
        local.to(new.to_local().device).clone(),
        new.device_mesh,
        new.placements,
        run_check=False,
        shape=value.shape,
        stride=new.stride(),
    )
