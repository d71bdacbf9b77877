"""``zero_grad`` of optimizers and of FSDP2's models, and who is told of it: torch has no hook for it.

A part of :mod:`fsdp_migrate.torch_compat`, and under its rule: no other file asks which torch this is
or touches its privates.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.optim.optimizer import Optimizer


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import nn


@functools.cache
def tell_of_zero_grad(told: Callable[[Iterable[torch.Tensor]], None]) -> None:
    """Call a function with the parameters whose gradients were zeroed, from now on; once a process.

    Not where a class of another package has a ``zero_grad`` that does not call torch's.
    """
    of_optimizers = Optimizer.zero_grad

    @functools.wraps(of_optimizers)
    def zero_grad_of_optimizer(self: Optimizer, *args: Any, **kwargs: Any) -> None:
        of_optimizers(self, *args, **kwargs)
        told(param for group in self.param_groups for param in group["params"])

    def zero_grad_of_model(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        super(FSDPModule, self).zero_grad(*args, **kwargs)  # type: ignore[misc]
        told(self.parameters())

    # torch.compile leaves torch's own out, too.
    setattr(Optimizer, "zero_grad", torch.compiler.disable(zero_grad_of_optimizer))  # noqa: B010
    setattr(FSDPModule, "zero_grad", torch.compiler.disable(zero_grad_of_model))  # noqa: B010
