"""What a model and its optimizers ask for: names, and the memory of this rank that is to hold the values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.tensor import DTensor, Replicate
from torch.nn.parallel import DistributedDataParallel

from fsdp_migrate.runtime.clean_names import clean_parameter_name
from fsdp_migrate.runtime.sharded import local_of
from fsdp_migrate.runtime.state_dicts import check_owners
from fsdp_migrate.sharding.tying import parameter_names
from fsdp_migrate.torch_compat.local_boxes import local_box
from fsdp_migrate.torch_compat.module_kinds import without_compile


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import nn
    from torch.optim import Optimizer

    from fsdp_migrate.checkpoint_convert.manifest.boxes import Box


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked for.

    Attributes:
        model: What the model's state dict holds, by name; tensors are the model's own.
        names: The names of each parameter, the first one first.
        optimizers: The optimizers.
        tensors: The parameters and buffers themselves.
        ties: The names of each parameter or buffer that has several.
    """

    model: Mapping[str, Any]
    names: Mapping[nn.Parameter, tuple[str, ...]]
    optimizers: tuple[Optimizer, ...]
    tensors: tuple[torch.Tensor, ...] = ()
    ties: tuple[tuple[str, ...], ...] = ()

    @property
    def groups(self) -> list[list[str]]:
        """Return the first name of each parameter in each group, one optimizer after the other."""
        return [[self.names[param][0] for param in group["params"]] for group in self._param_groups()]

    @property
    def settings(self) -> list[set[str]]:
        """Return the names of the settings of each group."""
        return [set(group) for group in self._param_groups()]

    @property
    def aliases(self) -> dict[str, str]:
        """Return the first name of each name of a parameter."""
        return {name: every[0] for every in self.names.values() for name in every}

    def _param_groups(self) -> Iterator[dict[str, Any]]:
        for optimizer in self.optimizers:
            yield from optimizer.param_groups


def look_at(model: nn.Module, optimizers: Sequence[Optimizer]) -> Wanted:
    """Return what a model and its optimizers ask for. Nothing is changed, and nobody is talked to.

    Raises:
        OptimizerError: An optimizer holds parameters that are not the model's.
    """
    state = _state_of(model)
    names = {
        param: tuple(dict.fromkeys(map(clean_parameter_name, every)))
        for param, every in parameter_names(_without_ddp(model)).items()
    }
    check_owners(optimizers, names)
    buffers: dict[torch.Tensor, list[str]] = {}
    for name, buffer in _without_ddp(model).named_buffers(remove_duplicate=False):
        buffers.setdefault(buffer, []).append(clean_parameter_name(name))
    several = [every for every in (*names.values(), *map(tuple, buffers.values())) if len(every) > 1]
    tensors = (*model.parameters(), *model.buffers())
    return Wanted(state, names, tuple(optimizers), tensors, tuple(several))


def _without_ddp(model: nn.Module) -> nn.Module:
    """Return what DistributedDataParallel wraps, compiled or not: torch's state dicts leave its name out."""
    inner = without_compile(model)
    return _without_ddp(inner.module) if isinstance(inner, DistributedDataParallel) else model


def _state_of(model: nn.Module) -> dict[str, Any]:
    """Return the model's state dict, without wrappers in its names."""
    own = model.state_dict()
    if any(isinstance(value, torch.Tensor) and value.is_meta for value in own.values()):
        # torch's function leaves out what has no memory, without a word, up to 2.7 at least.
        return {clean_parameter_name(name): value for name, value in own.items()}
    # It also refuses a model without anything to save.
    return dict(get_model_state_dict(model)) if own else {}


@dataclass(frozen=True, slots=True)
class Place:
    """Memory of this rank, and which part of a whole tensor goes into it."""

    box: Box
    local: torch.Tensor


def place_of(tensor: torch.Tensor) -> Place:
    """Return where this rank's part of a tensor lies."""
    return Place(local_box(tensor), local_of(tensor))


def blank_state(param: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return memory for a tensor of optimizer state, without values; sharded as the parameter is."""
    if not shape:
        return torch.empty((), dtype=dtype)  # counts of steps; the optimizer moves them where it wants them
    if shape == tuple(param.shape):
        return torch.empty_like(param.detach(), dtype=dtype)
    local = local_of(param)
    whole = torch.empty(shape, dtype=dtype, device=local.device)
    if not isinstance(param, DTensor):
        return whole
    # Such as Adafactor's sums of rows and columns.
    return DTensor.from_local(
        whole, param.device_mesh, [Replicate()] * param.device_mesh.ndim, run_check=False
    )
