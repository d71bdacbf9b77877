"""Gradients that wait in FSDP2's parameters for their reduction: asked for, filled with zeros, dropped.

A part of :mod:`fsdp_migrate.torch_compat`, and under its rule: no other file asks which torch this is
or touches its privates. What is read here was checked on 2.6, 2.7, 2.9, 2.13 and 2.15.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from fsdp_migrate.torch_compat.tensor_kinds import plain_zeros


if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    import torch


def reduce_dtype(param: Any) -> torch.dtype:
    """Return the dtype in which a parameter's gradient is reduced; torch 2.15 has a policy for each."""
    policy = param.mp_policy
    dtype: torch.dtype = policy.reduce_dtype or policy.param_dtype or param.sharded_param.dtype
    return dtype


def has_pending_gradient(param: Any) -> bool:
    """Tell whether a whole parameter is there, and has a gradient that waits."""
    return hasattr(param, "_unsharded_param") and pending_gradient(param) is not None


def drop_empty_gradients(params: Iterable[Any]) -> None:
    """Drop gradients without elements, which torch cannot reduce; under FSDP1 there were none."""
    for param in params:
        if param.sharded_param.numel() == 0 and has_pending_gradient(param):
            drop_gradient(param)


def drop_gradients(params: Iterable[Any], sharded: Collection[int]) -> None:
    """Drop the gradients that wait for sharded parameters, which are given by their ``id``."""
    for param in params:
        if id(param.sharded_param) in sharded:
            drop_gradient(param)


def drop_gradient(param: Any) -> None:
    """Drop the gradient that waits for a parameter, if there is one, wherever this torch keeps it."""
    if accumulates_apart(param):
        param.unsharded_accumulated_grad = None
    if hasattr(param, "_unsharded_param"):
        param._unsharded_param.grad = None


def accumulates_apart(param: Any) -> bool:
    """Tell whether gradients that wait in another dtype than theirs have a place of their own (to 2.14)."""
    # Statically: `getattr` would give the property's value, and not tell that it is one (2.15).
    return not isinstance(inspect.getattr_static(param, "unsharded_accumulated_grad", None), property)


def set_zero_gradient(param: Any, dtype: torch.dtype | None) -> None:
    """Give a parameter a gradient of zeros, in the dtype of the others that wait in its group."""
    whole = param._unsharded_param
    if not accumulates_apart(param):
        whole.grad = plain_zeros(whole, whole.grad_dtype)
    # A parameter's own `.grad` takes no other dtype than its data; what waits in another has its own place.
    elif dtype in {None, whole.dtype}:
        whole.grad = plain_zeros(whole)
    else:
        param.unsharded_accumulated_grad = plain_zeros(whole, dtype)


def pending_dtypes(params: Sequence[Any]) -> set[torch.dtype]:
    """Return the dtypes of the gradients that wait."""
    return {grad.dtype for param in params if (grad := pending_gradient(param)) is not None}


def pending_gradient(param: Any) -> torch.Tensor | None:
    """Return the gradient that waits, wherever this torch keeps it; None: there is none."""
    if getattr(param, "unsharded_accumulated_grad", None) is not None:
        accumulated: torch.Tensor = param.unsharded_accumulated_grad
        return accumulated
    pending: torch.Tensor | None = param._unsharded_param.grad
    return pending
