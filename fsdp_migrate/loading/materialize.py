"""Models on the meta device get memory before they are loaded; the rest is initialised, or named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch.distributed.tensor import DTensor

from fsdp_migrate.errors import ModelError
from fsdp_migrate.runtime.clean_names import clean_parameter_name
from fsdp_migrate.sharding.materialize import own_tensors, restore_ties
from fsdp_migrate.sharding.tying import Tie, parameter_names
from fsdp_migrate.torch_compat.devices import accelerator_type


if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from torch import nn
    from torch.optim import Optimizer


def check_meta(model: nn.Module) -> list[str]:
    """Return the names of parameters and buffers that have no memory yet."""
    every = (*model.named_parameters(), *model.named_buffers())
    return [clean_parameter_name(name) for name, tensor in every if tensor.is_meta]


@torch.no_grad()
def materialize(model: nn.Module, optimizers: Sequence[Optimizer], missing: Collection[str]) -> None:
    """Give a model memory, with values only where nothing will be loaded; optimizers follow its parameters.

    Args:
        model: The model. What has values keeps them.
        optimizers: Its optimizers.
        missing: The names for which the checkpoint has nothing.

    Raises:
        ModelError: What is not loaded belongs to a module without ``reset_parameters``; nothing was changed.
    """
    unset = _modules_without_values(model, missing)
    before = parameter_names(model)
    kept = {
        name: tensor.detach().clone()
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
        if not tensor.is_meta
    }
    # Of all tensors, also of those with values: these were kept above.
    model.to_empty(device=_device_of(model))
    restore_ties(model, [Tie(names, ()) for names in before.values() if len(names) > 1])
    now = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for module in unset:
        cast("Any", module).reset_parameters()
    # After `reset_parameters`, which fills all that a module has.
    for name, value in kept.items():
        now[name].copy_(value)
    fresh = dict(model.named_parameters(remove_duplicate=False))
    new = {old: fresh[names[0]] for old, names in before.items()}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["params"] = [new[param] for param in group["params"]]
        for old in [old for old in new if old in optimizer.state]:
            optimizer.state[new[old]] = optimizer.state.pop(old)


def _modules_without_values(model: nn.Module, missing: Collection[str]) -> list[nn.Module]:
    """Return the modules with a tensor that nothing gives a value, and that can give it one."""
    stored = {clean_parameter_name(name) for name in model.state_dict()}
    found: list[nn.Module] = []
    for prefix, module in model.named_modules():
        for name, tensor in own_tensors(module):
            full = clean_parameter_name(f"{prefix}.{name}" if prefix else name)
            if not tensor.is_meta or (full in stored and full not in missing):
                continue
            if not callable(getattr(module, "reset_parameters", None)):
                msg = (
                    f"`{full}` is on the meta device, the checkpoint has no value for it, and a "
                    f"{type(module).__name__} has no `reset_parameters()`. Give the model memory and values "
                    "before (`to_empty`, or build it on a real device)."
                )
                raise ModelError(msg, fqn=full)
            found.append(module)
            break
    return found


def _device_of(model: nn.Module) -> torch.device:
    """Return where the model is to lie: on its mesh, or where this process computes."""
    meshes = [param.device_mesh for param in model.parameters() if isinstance(param, DTensor)]
    return torch.device(meshes[0].device_type if meshes else accelerator_type() or "cpu")
