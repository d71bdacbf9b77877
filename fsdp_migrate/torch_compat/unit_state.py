"""What this package needs of torch's privates at run time: states of units, kernels, the gradient scaler.

A part of :mod:`fsdp_migrate.torch_compat`, and under its rule: no other file asks which torch this is or
touches its privates. What is read here was checked on 2.6, 2.7, 2.9, 2.13 and 2.15.
"""
# torch's scaler has no public way to let ranks agree.

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor


if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.distributed.fsdp import FSDPModule


def is_idle(unit: FSDPModule) -> bool:
    """Tell whether a unit is in no forward and in no backward."""
    name: str = unit._get_fsdp_state()._training_state.name
    return name == "IDLE"


def is_root(unit: FSDPModule) -> bool:
    """Tell whether a unit is the root of those that run; not known before the first of them has run."""
    found: bool | None = unit._get_fsdp_state()._is_root
    return bool(found)


def scale_in_place(tensors: list[torch.Tensor], factor: torch.Tensor) -> None:
    """Multiply plain tensors of one device and dtype by a scalar of the same, in few kernels."""
    torch._foreach_mul_(tensors, factor)


class AgreeingGradScaler(torch.amp.GradScaler):
    """A ``GradScaler`` whose ranks agree on whether there was an overflow, whatever the gradients are.

    torch's own asks the mesh of the first gradient of each dtype, and fails where plain gradients are among
    DTensors; gradients on other meshes, and plain ones, are not agreed on. This one unscales
    local tensors and makes one all-reduce. As FSDP1's scaler does, it takes float16 gradients.
    ``_unscale_grads_`` is what ``unscale_`` calls, and ``step`` for fused optimizers.
    """

    def __init__(self, device: str, *, process_group: dist.ProcessGroup | None, **options: Any) -> None:
        super().__init__(device, **options)
        self.process_group = process_group

    def _unscale_grads_(
        self,
        optimizer: torch.optim.Optimizer,
        inv_scale: torch.Tensor,
        found_inf: torch.Tensor,
        allow_fp16: bool,
    ) -> dict[torch.device, torch.Tensor]:
        del allow_fp16
        alike: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
        with torch.no_grad():
            for grad in _local_gradients(optimizer):
                alike.setdefault((grad.device, grad.dtype), []).append(grad)
            found = {found_inf.device: found_inf}
            for (device, _), grads in alike.items():
                flag = found.setdefault(device, found_inf.to(device, copy=True))
                torch._amp_foreach_non_finite_check_and_unscale_(grads, flag, inv_scale.to(device))
            agreed = torch.stack([flag.to(found_inf.device) for flag in found.values()]).amax()
            dist.all_reduce(agreed, op=dist.ReduceOp.MAX, group=self.process_group)
            for flag in found.values():
                flag.copy_(agreed)
        # torch adds the flags of all devices up; one is enough, and they are equal.
        return found


def _local_gradients(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        for param in group["params"]:
            if param.grad is None:
                continue
            # As torch's scaler does for float16: values that stand at one index are added up first, and may
            # overflow only then.
            if param.grad.is_sparse:
                param.grad = param.grad.coalesce()
                yield param.grad._values()
            elif isinstance(param.grad, DTensor):
                yield param.grad.to_local()
            else:
                yield param.grad
