"""What an optimizer steps: the models that hold it, whole and by names, and what no module holds."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.fsdp import FlatParameter, FSDPModule
from torch.distributed.tensor import DTensor

from fsdp_migrate.parity.comparing import groups_of
from fsdp_migrate.parity.recording import clean_name
from fsdp_migrate.parity.trainees import Prepared, UnderFSDP1
from fsdp_migrate.runtime.fsdp1_models import holds_fsdp1, is_fsdp1
from fsdp_migrate.sharding.prepare import fsdp1_arguments


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.optim import Optimizer

    from fsdp_migrate.parity.trainees import Tensors


_OF_NO_MODULE = "(of no module)"


class Stepped:
    """The parameters of an optimizer, in the models that hold them.

    Where there are several models, names begin with the number of theirs, such as ``(1) head.weight``.
    """

    def __init__(self, optimizer: Optimizer, models: Sequence[nn.Module]) -> None:
        self.optimizer = optimizer
        prefixes = ["" if len(models) == 1 else f"({number}) " for number in range(len(models))]
        self.parts = {
            prefix: _shown(model, optimizer) for prefix, model in zip(prefixes, models, strict=True)
        }
        held = {id(param) for model in models for param in model.parameters()}
        loose = [param for param in _params_of(optimizer) if id(param) not in held]
        self.loose = {f"{_OF_NO_MODULE} {place}": param for place, param in enumerate(loose)}
        self.is_fsdp1 = any(isinstance(each, UnderFSDP1) for each in self.parts.values())
        self.is_others = any(map(_is_others, models))

    def gradients(self) -> Tensors:
        """Return the gradients."""
        loose = {name: each.grad for name, each in self.loose.items() if each.grad is not None}
        return self._of_all(lambda each: each.gradients()) | _whole(loose)

    def parameters(self) -> Tensors:
        """Return all parameters of the models, and what else is stepped."""
        return self._of_all(lambda each: each.parameters()) | _whole(self.loose)

    def buffers(self) -> Tensors:
        """Return the models' buffers."""
        return self._of_all(lambda each: each.buffers())

    def has_state(self) -> bool:
        """Tell whether the optimizer has a state, such as moments, as one that has stepped or was loaded."""
        own = any(self.optimizer.state.get(param) for param in _params_of(self.optimizer))
        under = (each for each in self.parts.values() if isinstance(each, UnderFSDP1))
        return any([own, *(each.is_on_any_rank(holds=own) for each in under)])

    def _of_all(self, show: Callable[[UnderFSDP1 | Prepared], Tensors]) -> Tensors:
        return {
            f"{prefix}{name}": tensor
            for prefix, each in self.parts.items()
            for name, tensor in show(each).items()
        }

    def groups(self) -> dict[str, dict[str, Any]]:
        """Return the settings of each parameter that the optimizer has, as plain values."""
        names = {id(param): name for name, param in self.loose.items()}
        found: dict[str, dict[str, Any]] = {}
        for prefix, each in self.parts.items():
            if isinstance(each, UnderFSDP1) and not each.uses_originals:
                own = groups_of(each.optimizer_state())
                found |= {f"{prefix}{name}": group for name, group in own.items()}
            else:
                named = each.model.named_parameters()
                names |= {id(param): f"{prefix}{clean_name(name)}" for name, param in named}
        found |= {
            names[id(param)]: {key: value for key, value in group.items() if key != "params"}
            for group in self.optimizer.param_groups
            for param in group["params"]
            if id(param) in names
        }
        return {
            name: {key: plain_value(each) for key, each in group.items()} for name, group in found.items()
        }


def models_of(optimizer: Optimizer) -> list[nn.Module]:
    """Return the outermost modules that hold what an optimizer steps, in the order of its parameters.

    Names begin there in both runs. Of several that hold the same, the smallest is taken.
    """
    places = {id(param): place for place, param in enumerate(_params_of(optimizer))}
    # By the type: `isinstance` asks an object for its class, which runs code of lazy imports and proxies.
    modules = [each for each in gc.get_objects() if issubclass(type(each), nn.Module)]
    inner = {id(child) for each in modules for child in each.children()}
    held = {
        each: places.keys() & {id(param) for param in each.parameters()}
        for each in modules
        if id(each) not in inner
    }

    def rank(module: nn.Module) -> tuple[int, int, str]:
        return -len(held[module]), len(list(module.modules())), type(module).__name__

    found, left = {}, set(places)
    for each in sorted((each for each in held if held[each]), key=rank):
        if own := held[each] & left:
            found[each] = min(places[param] for param in own)
            left -= own
    return sorted(found, key=lambda each: found[each])


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the module in FSDP1's wrapper, which is the same before it is wrapped and under FSDP2."""
    while is_fsdp1(model):
        model = model.module
    return model


def are_sharded(models: Sequence[nn.Module]) -> bool:
    """Tell whether FSDP1 or FSDP2 shards a part of one of them."""
    inside = [each for model in models for each in model.modules()]
    return any(is_fsdp1(each) or isinstance(each, FSDPModule) for each in inside)


def plain_value(value: Any) -> Any:
    """Return a setting of an optimizer as JSON can hold it.

    Example:
        >>> plain_value(torch.tensor(0.5)), plain_value((1, None)), plain_value(len)
        (0.5, [1, None], 'builtin_function_or_method')
    """
    if isinstance(value, torch.Tensor):
        return value.item() if value.numel() == 1 else value.tolist()
    if isinstance(value, (list, tuple)):
        return [plain_value(each) for each in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else type(value).__name__


def _params_of(optimizer: Optimizer) -> list[Any]:
    return [param for group in optimizer.param_groups for param in group["params"]]


def _whole(tensors: Tensors) -> Tensors:
    own = {name: each.detach() for name, each in tensors.items()}
    return {
        name: (each.full_tensor() if isinstance(each, DTensor) else each).cpu().clone()
        for name, each in own.items()
    }


def _shown(model: nn.Module, optimizer: Optimizer) -> UnderFSDP1 | Prepared:
    device = next(model.parameters()).device
    if holds_fsdp1(model):
        wrapped = UnderFSDP1(model, device, on_host=True, records=False)
        wrapped.adopt(model, optimizer, uses_originals=not _has_flat(model))
        return wrapped
    prepared = Prepared(model, device, on_host=True, records=False)
    prepared.adopt(optimizer)
    return prepared


def _is_others(model: nn.Module) -> bool:
    units = [each for each in model.modules() if isinstance(each, FSDPModule)]
    return bool(units) and all(fsdp1_arguments(each) is None for each in model.modules())


def _has_flat(model: nn.Module) -> bool:
    return any(isinstance(param, FlatParameter) for param in model.parameters())
