"""What a module is to torch: wrapped, compiled, checkpointed, without a forward; and copies of it."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    ActivationWrapper,
    checkpoint_wrapper,
    offload_wrapper,
)
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor


def is_fsdp1_module(module: nn.Module) -> bool:
    """Tell whether FSDP1 has wrapped the module."""
    return isinstance(module, FullyShardedDataParallel)


def has_forward(module: nn.Module) -> bool:
    """Tell whether a module has a forward of its own, on which FSDP2 can hang its hooks."""
    return type(module).forward is not nn.Module.forward or "forward" in vars(module)


def is_bare_container(module: nn.Module) -> bool:
    """Tell whether a module is one of those without a forward that ``fully_shard`` refuses (2.6 to 2.15)."""
    return isinstance(module, (nn.ModuleList, nn.ModuleDict)) and not has_forward(module)


def meta_twin(module: nn.Module) -> nn.Module:
    """Copy a module without what is below it, with parameters and buffers of its own on the meta device."""
    twin = copy.copy(module)
    # A shallow copy shares its tables: what is set on the twin would be set on the module.
    for table in ("_parameters", "_buffers"):
        vars(twin)[table] = dict(vars(module)[table])
    for name, tensor in list(twin.named_parameters(recurse=False)):
        setattr(twin, name, nn.Parameter(tensor.to("meta").clone(), requires_grad=tensor.requires_grad))
    for name, buffer in list(twin.named_buffers(recurse=False)):
        setattr(twin, name, buffer.to("meta").clone())
    return twin


def leave_weights_in_place(model: nn.Module) -> None:
    """Let recurrent layers whose weights are sharded use them where FSDP2 gathers them.

    On CUDA ``flatten_parameters``, which such a layer calls in its first forward, moves the gathered weights
    into memory of its own. FSDP2 gathers into the old memory from then on, and the layer computes with the
    weights of the first step, without a word. cuDNN copies them at each call instead (2.6 to 2.15).
    """
    for module in model.modules():
        if isinstance(module, nn.RNNBase) and any(isinstance(p, DTensor) for p in module.parameters()):
            module.flatten_parameters = _leave  # type: ignore[method-assign]


def _leave() -> None:
    """Do nothing: a function of this module, so that a model can still be copied and pickled."""


def is_compiled(module: nn.Module) -> bool:
    """Tell whether a module is compiled: in place, or as the wrapper of ``torch.compile`` (2.6 to 2.15)."""
    return "_orig_mod" in vars(module)["_modules"] or module._compiled_call_impl is not None


def without_compile(module: nn.Module) -> nn.Module:
    """Return what ``torch.compile`` wrapped; another module as it is (2.6 to 2.15)."""
    inner = vars(module)["_modules"].get("_orig_mod")
    return module if inner is None else inner


def checkpoint_wrapped(model: nn.Module) -> set[nn.Module]:
    """Return torch's wrappers of activation checkpointing, and what they wrap (2.6 to 2.15)."""
    wrappers = [module for module in model.modules() if isinstance(module, ActivationWrapper)]
    return {module for each in wrappers for module in (each, each._checkpoint_wrapped_module)}


def read_checkpoint_wrapper(wrapper: Any) -> dict[str, Any] | None:
    """Return the options in a ``checkpoint_wrapper``, ``offload_wrapper`` or partial of one; else None."""
    bound: dict[str, Any] = {}
    while isinstance(wrapper, partial):
        # What the outer partial says counts, as when it is called.
        bound = {**wrapper.keywords, **bound}
        wrapper = wrapper.func
    if wrapper is offload_wrapper:
        return {"recompute": False, "offload_to_cpu": True}
    if wrapper is not checkpoint_wrapper:
        return None
    return {key: value for key, value in bound.items() if value is not None}
