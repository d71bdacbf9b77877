"""What must be right about a model before anything of it is changed; each check raises a clear error."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from fsdp_migrate.errors import ModelError
from fsdp_migrate.findings import counted
from fsdp_migrate.sharding.gather_hooks import check_hooks
from fsdp_migrate.sharding.packed_weights import check_packed
from fsdp_migrate.torch_compat import module_kinds, tensor_kinds
from fsdp_migrate.torch_compat.packed_weights import is_packed


if TYPE_CHECKING:
    from collections.abc import Iterable, Set as AbstractSet

    from fsdp_migrate.sharding.units import UnitPlan


_QUANTISERS = frozenset({"bitsandbytes", "torchao", "hqq", "optimum", "quanto"})
"""Packages whose parameters are numbers with scales beside them; ``optimum`` holds quanto."""


_SCRIPTED = "is scripted (TorchScript): its class and hooks are fixed, so that FSDP2 cannot shard it."
_UNSCRIPT = "Put the module that was scripted or traced in its place, or pass it in `ignored_modules`."


def check_model(model: nn.Module) -> None:
    """Check that the model is one that nothing has sharded or wrapped yet.

    Raises:
        ModelError: It is wrapped by FSDP1 or DDP, is sharded already, is scripted, or is a container without
            a forward.
    """
    _check_unshared(model)
    for fqn, module in model.named_modules():
        where = f"`{fqn}`" if fqn else "The model"
        if module_kinds.is_fsdp1_module(module):
            msg = (
                f"{where} is wrapped by FullyShardedDataParallel. Give prepare_fully_shard the model as it "
                f"was before, in place of the FSDP call.{_one_call(model) if fqn else ''}"
            )
            raise ModelError(msg, fqn=fqn)
        if isinstance(module, FSDPModule):
            msg = (
                f"{where} is sharded by fully_shard already. prepare_fully_shard shards a whole model, once, "
                "after tensor parallelism, activation checkpointing and torch.compile."
            )
            raise ModelError(msg, fqn=fqn)
        if isinstance(module, DistributedDataParallel):
            msg = f"{where} is wrapped by DistributedDataParallel. Give prepare_fully_shard its `.module`."
            raise ModelError(msg, fqn=fqn)
    if isinstance(model, torch.jit.ScriptModule):
        msg = f"The model {_SCRIPTED} Give prepare_fully_shard the module that was scripted or traced."
        raise ModelError(msg, fqn="")
    if module_kinds.is_bare_container(model):
        msg = (
            f"The model is a {type(model).__name__}, which has no `forward`: FSDP2 refuses such containers. "
            "Shard the module that contains it, or each module in it that is called, by a call of its own."
        )
        raise ModelError(msg, fqn="")


def _one_call(model: nn.Module) -> str:
    """Say which call replaces those that a model's own code makes of FSDP1."""
    wrapped = [getattr(m, "module", m) for m in model.modules() if module_kinds.is_fsdp1_module(m)]
    names = ", ".join(sorted({type(module).__name__ for module in wrapped}))
    return (
        f" Where the model's own code wraps, take out its {len(wrapped)} `FSDP(...)` or `wrap(...)`; "
        f"one call replaces them: `prepare_fully_shard(model, {{'auto_wrap_policy': {{{names}}}}})`, with "
        "the other arguments that they had. Arguments that differ by module go into a `CustomPolicy`."
    )


# By module, and not by parameter: torch moves no parameter to another device that has a weak reference.
_sharded: WeakKeyDictionary[nn.Module, set[str]] = WeakKeyDictionary()


def remember_sharded(model: nn.Module) -> None:
    """Remember the parameters of a model that has been sharded, for the sake of others that share them."""
    for module in model.modules():
        own = dict(module.named_parameters(recurse=False))
        _sharded[module] = {name for name, param in own.items() if isinstance(param, DTensor)}


def _check_unshared(model: nn.Module) -> None:
    if isinstance(model, FSDPModule):
        return
    shared = [
        f"{prefix}.{name}".lstrip(".")
        for prefix, module in model.named_modules()
        for name, param in module.named_parameters(recurse=False)
        if name in _sharded.get(module, ()) and isinstance(param, DTensor)
    ]
    if shared:
        msg = (
            f"`{shared[0]}` ({counted(len(shared), 'parameter')} in all) has been sharded already, by "
            "a call of prepare_fully_shard for another model that shares it, or for a part of this one. A "
            "parameter is sharded once. Put both models into one module, shard that in one call, and let the "
            "auto-wrap policy select the shared part as a unit."
        )
        raise ModelError(msg, fqn=shared[0])


def check_parameters(
    model: nn.Module, ignored: AbstractSet[nn.Parameter], skipped: AbstractSet[nn.Module]
) -> None:
    """Check that ``fully_shard`` takes every parameter that is not ignored, whatever the units are.

    Raises:
        ModelError: One is not materialised, sparse, freed, a scalar, quantised in another way than packed, of
            integers, of a scripted module, or hidden by an attribute.
    """
    # First: what is lazy has no shape, which all the rest asks for.
    check_not_lazy(model, ignored, skipped)
    for prefix, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule) and any(p not in ignored for p in module.parameters()):
            msg = f"Module `{prefix}` {_SCRIPTED} {_UNSCRIPT}"
            raise ModelError(msg, fqn=prefix)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        _check_found(model, name, parameter)
        if parameter in ignored:
            continue
        _check_memory(name, parameter)
        if parameter.ndim == 0:
            msg = (
                f"Parameter `{name}` is a scalar, which fully_shard cannot shard. Make it 1-D with one "
                f"element, or pass it in `ignored_states`."
            )
            raise ModelError(msg, fqn=name)
        if parameter.numel() == 0 and parameter.shape[0] > 0:
            msg = (
                f"Parameter `{name}` of shape {tuple(parameter.shape)} has rows without elements, of which "
                "fully_shard loses the number. Pass it in `ignored_states`."
            )
            raise ModelError(msg, fqn=name)
        if is_packed(parameter):
            check_packed(model, name, parameter)
        else:
            _check_kind(name, parameter)


def check_units(model: nn.Module, units: Iterable[UnitPlan]) -> None:
    """Check that every unit is one that ``fully_shard`` takes.

    Raises:
        ModelError: A unit is a scripted module, or has parameters of several dtypes.
    """
    named = dict(model.named_parameters(remove_duplicate=False))
    for unit in units:
        if isinstance(model.get_submodule(unit.fqn), torch.jit.ScriptModule):
            msg = f"Module `{unit.fqn}` {_SCRIPTED} {_UNSCRIPT}"
            raise ModelError(msg, fqn=unit.fqn)
        _check_dtypes(unit, named)


def check_not_lazy(
    model: nn.Module,
    ignored: AbstractSet[nn.Parameter] = frozenset(),
    skipped: AbstractSet[nn.Module] = frozenset(),
) -> None:
    """Check that every tensor that is not ignored has a shape.

    Raises:
        ModelError: One is lazy, and no batch has gone through it.
    """
    for fqn, module in model.named_modules():
        if module not in skipped:
            _check_lazy(fqn, module, ignored)


def _check_lazy(fqn: str, module: nn.Module, ignored: AbstractSet[nn.Parameter]) -> None:
    own = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
    lazy = [name for name, tensor in own if tensor not in ignored and nn.parameter.is_lazy(tensor)]
    if lazy:
        msg = (
            f"`{f'{fqn}.{lazy[0]}'.lstrip('.')}` of a {type(module).__name__} is lazy: it has no shape until "
            "a batch has gone through the model. Run one forward on every rank first, or build the module "
            "with its sizes."
        )
        raise ModelError(msg, fqn=fqn)


def _check_found(model: nn.Module, name: str, parameter: nn.Parameter) -> None:
    """Check that a parameter is found by its name, as attributes are."""
    cause = None
    try:
        if model.get_parameter(name) is parameter:
            return
    except Exception as error:  # whatever the attributes of others raise
        cause = error
    msg = (
        f"Parameter `{name}` is not what the attribute of this name gives: an attribute or property of a "
        "class hides it, or a module above it. Register it under another name."
    )
    raise ModelError(msg, fqn=name) from cause


def _check_memory(name: str, parameter: nn.Parameter) -> None:
    """Check that a parameter is one dense block of memory that is there."""
    what = "Pass it in `ignored_states`, or"
    if parameter.layout is not torch.strided or parameter.is_nested:
        kind = "nested" if parameter.is_nested else str(parameter.layout).removeprefix("torch.")
        msg = (
            f"Parameter `{name}` is a {kind} tensor; expected a dense one: neither FSDP1 nor FSDP2 shards "
            f"others. {what} make it dense. (Sparse gradients are something else: they may stay.)"
        )
        raise ModelError(msg, fqn=name)
    plain = type(parameter.data) is torch.Tensor and not parameter.is_meta
    if plain and parameter.numel() and not parameter.untyped_storage().size():
        msg = (
            f"Parameter `{name}` of shape {tuple(parameter.shape)} has no memory: something freed its "
            f"storage, as engines that shard parameters themselves do. {what} shard the model before that."
        )
        raise ModelError(msg, fqn=name)


def _check_dtypes(unit: UnitPlan, named: dict[str, nn.Parameter]) -> None:
    examples: dict[str, str] = {}
    for name in unit.parameters:
        examples.setdefault(str(named[name].dtype).removeprefix("torch."), name)
    if len(examples) > 1:
        found = ", ".join(f"{dtype} (`{name}`)" for dtype, name in examples.items())
        msg = (
            f"Unit `{unit.fqn or 'the root'}` would hold parameters of several dtypes: {found}. FSDP1 and "
            "FSDP2 shard one dtype per unit. Select the modules of one dtype as units of their own by the "
            "auto-wrap policy, or cast them."
        )
        raise ModelError(msg, fqn=unit.fqn)


def _check_kind(name: str, parameter: nn.Parameter) -> None:
    """Check that a parameter is one plain tensor of numbers, or tells FSDP2 itself how to gather it."""
    hooks = tensor_kinds.gather_hooks(parameter)
    if hooks is not None:
        check_hooks(name, hooks)
        return
    tensors = (parameter, parameter.data)
    what = "Pass it in `ignored_states`, or dequantise it."
    kind = type(parameter).__name__
    packages = {base.__module__.partition(".")[0] for tensor in tensors for base in type(tensor).__mro__}
    quantiser = next(iter(packages & _QUANTISERS), None)
    if quantiser is not None:
        msg = (
            f"Parameter `{name}` is quantised by {quantiser} ({kind}), which fully_shard would cut up "
            f"without its scales. {what}"
        )
        raise ModelError(msg, fqn=name)
    if any(tensor_kinds.is_made_of_tensors(tensor) for tensor in tensors):
        msg = (
            f"Parameter `{name}` is a {type(parameter).__module__}.{kind}, which is made of other tensors "
            f"and does not tell FSDP2 how to gather it (`fsdp_pre_all_gather`). {what}"
        )
        raise ModelError(msg, fqn=name)
    if not (parameter.is_floating_point() or parameter.is_complex()):
        dtype = str(parameter.dtype).removeprefix("torch.")
        msg = (
            f"Parameter `{name}` holds {dtype}: quantised weights, or no weights. FSDP1 refused it, and "
            f"FSDP2 would cast it under mixed precision. {what}"
        )
        raise ModelError(msg, fqn=name)
