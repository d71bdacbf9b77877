"""What must be right about a model before anything of it is changed; each check raises a clear error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from fsdp_migrate import torch_compat
from fsdp_migrate.errors import ModelError


if TYPE_CHECKING:
    from collections.abc import Iterable, Set as AbstractSet

    from fsdp_migrate.units import UnitPlan


_QUANTISERS = frozenset({"bitsandbytes", "torchao", "hqq", "optimum", "quanto"})
"""Packages whose parameters are numbers with scales beside them; ``optimum`` holds quanto."""


def check_is_module(model: object) -> None:
    """Check that what is given for a model is one.

    Raises:
        ModelError: It is something else.
    """
    if not isinstance(model, nn.Module):
        msg = (
            f"The model is a {type(model).__name__}; expected a torch.nn.Module, and its arguments after it."
        )
        raise ModelError(msg)


def check_model(model: nn.Module) -> None:
    """Check that the model is one that nothing has sharded or wrapped yet.

    Raises:
        ModelError: It is wrapped by FSDP1 or DDP, is sharded already, or is a container without a forward.
    """
    check_is_module(model)
    for fqn, module in model.named_modules():
        where = f"`{fqn}`" if fqn else "The model"
        if torch_compat.is_fsdp1_module(module):
            msg = (
                f"{where} is wrapped by FullyShardedDataParallel. Give prepare_fully_shard the model as it "
                "was before, in place of the FSDP call."
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
    if not torch_compat.has_forward(model):
        msg = (
            f"The model is a {type(model).__name__}, which has no `forward` for FSDP2 to hang on. "
            "Shard the module that contains it and is called."
        )
        raise ModelError(msg, fqn="")


def check_units(model: nn.Module, units: Iterable[UnitPlan], ignored: AbstractSet[nn.Parameter]) -> None:
    """Check that ``fully_shard`` takes every unit.

    Raises:
        ModelError: A parameter is a scalar, empty, quantised, of integers, not contiguous, or of another
            dtype than its unit.
    """
    named = dict(model.named_parameters(remove_duplicate=False))
    for name, parameter in named.items():
        if parameter in ignored:
            continue
        if parameter.ndim == 0:
            msg = (
                f"Parameter `{name}` is a scalar, which fully_shard cannot shard. Make it 1-D with one "
                f"element, or pass it in `ignored_states`."
            )
            raise ModelError(msg, fqn=name)
        if parameter.numel() == 0 and parameter.requires_grad:
            msg = (
                f"Parameter `{name}` of shape {tuple(parameter.shape)} has no elements, and FSDP2 fails in "
                "backward where it reduces such a gradient. Freeze it (`requires_grad_(False)`), or pass it "
                "in `ignored_states`."
            )
            raise ModelError(msg, fqn=name)
        _check_kind(name, parameter)
        if not parameter.is_contiguous():
            msg = f"Parameter `{name}` is not contiguous; fully_shard needs `.contiguous()` parameters."
            raise ModelError(msg, fqn=name)
    for unit in units:
        _check_dtypes(unit, named)


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
    tensors = (parameter, parameter.data)
    if any(hasattr(tensor, "fsdp_pre_all_gather") for tensor in tensors):
        return
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
    if any(torch_compat.is_made_of_tensors(tensor) for tensor in tensors):
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
