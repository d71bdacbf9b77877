"""Weights of bitsandbytes: four bits a number, packed into bytes that a floating-point dtype stands for.

They are no floating-point numbers. What casts or averages them makes others of them.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from torch.distributed.fsdp import MixedPrecisionPolicy

from fsdp_migrate.torch_compat.param_groups import parameter_groups


if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import torch
    from torch import nn


_OVERRIDE = "param_dtype_override_fn"
CAN_KEEP_DTYPES = any(field.name == _OVERRIDE for field in fields(MixedPrecisionPolicy))
"""torch 2.15: a policy can be told which parameters are not cast."""


def is_packed(parameter: object) -> bool:
    """Tell whether a parameter is a ``Params4bit``, or what :func:`keep_packed` made of its shards."""
    # By name: nothing is imported for a package that may not be there.
    kinds = type(parameter).__mro__
    return any(kind.__name__ == "Params4bit" for kind in kinds) or hasattr(parameter, "bnb_quantized")


def is_ready(parameter: nn.Parameter, owner: nn.Module) -> bool:
    """Tell whether a weight has been packed, and its module knows with which scales.

    A gathered parameter of FSDP1 or FSDP2 is a plain one. bitsandbytes then takes the scales from the module.
    """
    packed = getattr(parameter, "quant_state", None) is not None
    return packed and getattr(owner, "quant_state", None) is not None


def packed_attributes(model: nn.Module) -> dict[str, dict[str, Any]]:
    """Return what each packed parameter of a model bears beside its bytes, by name."""
    return {name: dict(vars(each)) for name, each in model.named_parameters() if is_packed(each)}


def uncast(policy: MixedPrecisionPolicy, packed: Collection[nn.Parameter]) -> MixedPrecisionPolicy:
    """Return a policy that leaves packed parameters their dtype; before 2.15 :func:`keep_packed` does it."""
    if not packed or not CAN_KEEP_DTYPES:
        return policy
    kept = frozenset(packed)

    def keep(parameter: nn.Parameter) -> torch.dtype | None:
        return parameter.dtype if parameter in kept else None

    override: dict[str, Any] = {_OVERRIDE: keep}  # which older releases have not
    return replace(policy, **override)


def keep_packed(model: nn.Module, kept: Mapping[str, dict[str, Any]]) -> None:
    """Give sharded parameters what they bore before, and let their units gather them without a cast.

    With their scales they are saved as before: bitsandbytes puts them into a state dict where the weight has
    them, and torch looks for them on the weight.
    """
    sharded = set()
    for name, attributes in kept.items():
        parameter = model.get_parameter(name)
        vars(parameter).update(attributes)
        scales: Any = attributes.get("quant_state")
        entries = scales.as_dict(packed=True) if hasattr(scales, "as_dict") else {}
        for key, value in entries.items():
            # `weight.absmax`, and `weight.quant_state.bitsandbytes__nf4`, which earlier releases have not.
            where, inner = (scales, key.partition(".")[2]) if "." in key else (parameter, key)
            if not hasattr(where, inner):
                setattr(where, inner, value)
        sharded.add(parameter)
    for group in parameter_groups(model) if sharded and not CAN_KEEP_DTYPES else ():
        for each in group.parameters:
            if each.sharded_param in sharded:
                _keep_dtype(each)


def _keep_dtype(param: Any) -> None:
    """Let one parameter of a unit keep its dtype, whatever the unit's mixed precision is (2.6 to 2.14)."""
    settle = param.init_dtype_attrs

    def settle_uncast(policy: Any) -> None:
        settle(policy)
        param.param_dtype = None

    param.init_dtype_attrs = settle_uncast
