"""``clip_grad_norm_`` for gradients that are sharded over several meshes, or not at all."""

from __future__ import annotations

import functools
import math
import warnings
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Replicate

from fsdp_migrate.arguments import NUMERAL, SEVERAL, check_arguments, instance_of
from fsdp_migrate.errors import ConfigError, ModelStateError
from fsdp_migrate.runtime.fsdp1_models import is_fsdp1
from fsdp_migrate.runtime.sharded import local_of, show_shards
from fsdp_migrate.torch_compat import unit_state


if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch.distributed.device_mesh import DeviceMesh


@torch.no_grad()
def clip_grad_norm_(
    model_or_parameters: nn.Module | torch.Tensor | Iterable[torch.Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> torch.Tensor:
    """Scale all gradients so that their norm, as that of one vector, is at most ``max_norm``.

    Takes the place of FSDP1's ``model.clip_grad_norm_(...)`` and of ``torch.nn.utils.clip_grad_norm_``, which
    fails where DTensors of several meshes, or DTensors and plain tensors, come together. Each gradient counts
    once, however many ranks hold it: shards are summed over the ranks that share a tensor, replicas (HSDP,
    NO_SHARD) and plain tensors (ignored parameters) are not. Norms are taken in float32 at least, as FSDP1
    did, and differ from FSDP1's by the order of summation: by less than 1e-6 of their value.

    Changes: the gradients, in place, if the norm exceeds ``max_norm``. One all-reduce of a scalar for each
    way in which parameters are sharded; all ranks must call it. Plain gradients must be equal on all ranks,
    as those of ignored parameters are only if you reduce them; FSDP1 asked the same.

    Args:
        model_or_parameters: The model, or parameters of it: one, or several.
        max_norm: The largest norm that is left alone; not negative.
        norm_type: The order p of the norm: above 0, or ``inf``. Both may be texts that say a number, as FSDP1
            took them.
        error_if_nonfinite: Raise if the norm is infinite or NaN, before anything is scaled.
        foreach: False: scale gradients one by one. Otherwise in few kernels.

    Returns:
        The norm before clipping: a plain scalar tensor, equal on all ranks, on the device and of the common
        dtype of the gradients; 0.0 if there are none.

    Raises:
        ConfigError: ``max_norm`` or ``norm_type`` is out of range.
        ModelStateError: The norm is not finite and ``error_if_nonfinite``; or a model was given in the
            middle of its forward or backward.

    Example:
        >>> layer = nn.Linear(3, 1, bias=False)
        >>> layer.weight.grad = torch.tensor([[2.0, 3.0, 6.0]])
        >>> clip_grad_norm_(layer, max_norm=0.7)
        tensor(7.)
        >>> layer.weight.grad
        tensor([[0.2000, 0.3000, 0.6000]])
    """
    check_arguments(NUMERAL, norm_type=norm_type, max_norm=max_norm)
    order, limit = float(norm_type), float(max_norm)
    if not order > 0:
        msg = f"`norm_type` is {norm_type!r}; expected a number above 0, or `inf`."
        raise ConfigError(msg, field="norm_type")
    if not limit >= 0:
        msg = f"`max_norm` is {max_norm!r}; expected a number that is not negative."
        raise ConfigError(msg, field="max_norm")
    if is_fsdp1(model_or_parameters):
        return model_or_parameters.clip_grad_norm_(limit, order)
    parameters = _parameters(model_or_parameters)
    grads = [param.grad for param in parameters if param.grad is not None]
    norm = _total_norm(parameters, order)
    if not grads:
        msg = "`clip_grad_norm_` found no gradient on this rank: nothing is scaled; the norm is the others'."
        warnings.warn(msg, stacklevel=3)
        return norm
    if error_if_nonfinite and not bool(norm.isfinite()):
        msg = (
            f"The norm of order {order:g} of the gradients is {norm.item()}, so they cannot be clipped. "
            "They are left as they are. `error_if_nonfinite=False` scales them all the same."
        )
        raise ModelStateError(msg)
    # The constant is FSDP1's and torch's.
    _scale(grads, (limit / (norm + 1e-6)).clamp(max=1.0), one_by_one=foreach is False)
    return norm.to(functools.reduce(torch.promote_types, [grad.dtype for grad in grads]))


def _parameters(given: nn.Module | torch.Tensor | Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Return each parameter once, in the order in which they are given."""
    if isinstance(given, nn.Module):
        show_shards(given, "clip_grad_norm_")
        return list(given.parameters())
    if isinstance(given, torch.Tensor):
        return [given]
    check_arguments(SEVERAL, model_or_parameters=given)
    found = list({id(param): param for param in given}.values())
    for each in found:
        check_arguments(instance_of(torch.Tensor), model_or_parameters=each)
    return found


def _total_norm(parameters: list[torch.Tensor], order: float) -> torch.Tensor:
    """Return the norm of all gradients; every rank calls it with parameters that are sharded alike.

    Parameters without a gradient are asked as well: a rank whose part of the model was not used takes part
    in the same collectives as the others.
    """
    alike: dict[tuple[DeviceMesh, tuple[int, ...]] | None, list[torch.Tensor]] = {}
    grads = []
    for param in parameters:
        own = alike.setdefault(_sharding(param), [])
        if param.grad is not None:
            grads.append(param.grad)
            own.append(local_of(_reduced(param)))
    dtype = functools.reduce(torch.promote_types, [grad.dtype for grad in grads], torch.float32)
    device = grads[0].device if grads else torch.device("cpu")
    zero = torch.zeros((), device=device, dtype=dtype)
    parts = [zero]
    for sharding, own in alike.items():
        # An empty shard has no maximum.
        norms = [
            torch.linalg.vector_norm(grad, order, dtype=dtype).to(device) for grad in own if grad.numel()
        ]
        part = torch.linalg.vector_norm(torch.stack(norms), order) if norms else zero
        parts.append(part if sharding is None else _over_ranks(part, order, *sharding))
    total: torch.Tensor = torch.linalg.vector_norm(torch.stack(parts), order)
    return total


def _sharding(tensor: torch.Tensor) -> tuple[DeviceMesh, tuple[int, ...]] | None:
    """Return the mesh of a tensor and those dimensions of it over which the tensor is divided."""
    if not isinstance(tensor, DTensor):
        return None
    dims = [dim for dim, placement in enumerate(tensor.placements) if not isinstance(placement, Replicate)]
    divided = tuple(dim for dim in dims if tensor.device_mesh.size(dim) > 1)
    return (tensor.device_mesh, divided) if divided else None


def _reduced(param: torch.Tensor) -> torch.Tensor:
    """Return the gradient, placed as its parameter is: the parts of a sum have no norm."""
    grad = param.grad
    assert grad is not None
    if isinstance(grad, DTensor) and isinstance(param, DTensor) and grad.placements != param.placements:
        return grad.redistribute(param.device_mesh, param.placements)
    return grad


def _over_ranks(part: torch.Tensor, order: float, mesh: DeviceMesh, dims: tuple[int, ...]) -> torch.Tensor:
    """Combine the norms of what each rank holds, on the mesh's own device: shards may be on the CPU."""
    biggest = math.isinf(order)
    # A copy: the all-reduce writes into it, and the zero of those that hold nothing is shared.
    value = part.to(mesh.device_type, copy=True)
    if not biggest:
        value = torch.pow(value, order)
    for dim in dims:
        how = dist.ReduceOp.MAX if biggest else dist.ReduceOp.SUM
        dist.all_reduce(value, op=how, group=mesh.get_group(dim))
    total = value if biggest else torch.pow(value, 1.0 / order)
    return total.to(part.device)


def _scale(grads: list[torch.Tensor], factor: torch.Tensor, *, one_by_one: bool) -> None:
    alike: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    for grad in grads:
        local = local_of(grad)
        alike.setdefault((local.device, local.dtype), []).append(local)
    for (device, dtype), tensors in alike.items():
        own = factor.to(device, dtype)
        if not one_by_one:
            unit_state.scale_in_place(tensors, own)
            continue
        for tensor in tensors:
            tensor.mul_(own)
