"""Groups of an optimizer that kernels for many tensors at once, ``foreach`` and ``fused``, do not take."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed.tensor import DTensor

from fsdp_migrate.errors import OptimizerError
from fsdp_migrate.torch_compat import device_meshes, optimizer_kinds


if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch
    from torch.optim.optimizer import Optimizer


logger = logging.getLogger(__name__)

_ALONE = "its kernels do not take DTensors. The values are the same."
_MIXED = (
    "its kernels do not take the sharded and the plain parameters of one group together. The values are the "
    "same; a group for each, [{'params': ...}, {'params': ...}], is faster."
)


def make_mixable(optimizer: Optimizer, group: dict[str, Any]) -> None:
    """Switch ``foreach`` and ``fused`` off where they do not take tensors of several kinds or meshes."""
    optimizer_kinds.switch_off(optimizer, group, _refused(optimizer, [group["params"]]))


def may_be_refused(optimizer: Optimizer) -> bool:
    """Tell whether some gradients of an optimizer may be more than its kernels take together."""
    return any(_refused(optimizer, [group["params"]]) for group in optimizer.param_groups)


def make_steppable(optimizer: Optimizer) -> None:
    """Do what :func:`make_mixable` does, before a step of an optimizer that was made later.

    Only what has a gradient is stepped, and kernels are given each device and dtype for itself: a frozen
    module that is not sharded is no reason to go one by one.

    Raises:
        OptimizerError: A scaler has left it to a fused step to unscale, which others do not do.
    """
    for group in optimizer.param_groups:
        refused = set(_refused(optimizer, _stepped_together(group["params"])))
        on = [name for name in ("foreach", "fused") if name in refused and _is_on(group, name)]
        if not on:
            continue
        name = type(optimizer).__name__
        # The scaler has decided by now: a step that is not fused would take scaled gradients as they are.
        if group.get("fused") and "fused" in on and hasattr(optimizer, "found_inf"):
            msg = (
                f"This {name} is fused and steps DTensors, or those and plain tensors in one group, which "
                "its kernels do not take; a GradScaler relies on them. Build it with `fused=False`."
            )
            raise OptimizerError(msg)
        lone = set(on) <= set(optimizer_kinds.refused_options(optimizer))
        optimizer_kinds.switch_off(optimizer, group, refused)
        if dist.is_initialized() and dist.get_rank() == 0:
            which = " and ".join(f"`{option}`" for option in on)
            said = _ALONE if lone else _MIXED
            logger.info(
                "%s optimizers.%s: %s switched off: %s", "FM113" if lone else "FM106", name, which, said
            )


def _is_on(group: dict[str, Any], option: str) -> bool:
    """Tell whether an option is switched on, or left to torch, which takes ``foreach`` on GPUs."""
    return bool(group.get(option)) or (option == "foreach" and group.get(option, False) is None)


def _stepped_together(params: Iterable[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Return what a kernel is given together: the parameters with gradients of one device and dtype."""
    found: dict[Any, list[torch.Tensor]] = {}
    for param in params:
        if param.grad is not None:
            found.setdefault((param.device, param.dtype), []).append(param)
    return list(found.values())


def _refused(optimizer: Optimizer, together: Iterable[list[torch.Tensor]]) -> list[str]:
    """Return the options whose kernels refuse parameters, some of which they are given together."""
    refused: list[str] = []
    for params in together:
        meshes = {param.device_mesh if isinstance(param, DTensor) else None for param in params}
        if meshes - {None}:
            refused += optimizer_kinds.refused_options(optimizer)
        if len(meshes) > 1:
            refused += ("foreach", "fused") if None in meshes else device_meshes.OPTIONS_OF_ONE_MESH
    return refused
