"""``zero_grad`` of modules and of optimizers: what it reaches, and who is told of it. torch has no hook.

A part of :mod:`fsdp_migrate.torch_compat`, and under its rule: no other file asks which torch this is
or touches its privates.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from fsdp_migrate.torch_compat.switched import shard_of


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


_told: list[Callable[[Iterable[torch.Tensor]], None]] = []


def tell_of_zero_grad(told: Callable[[Iterable[torch.Tensor]], None]) -> None:
    """Call a function with the parameters whose gradients were zeroed, from now on.

    Of those that are shown whole it is given the shards, too. Not where a class of another package has a
    ``zero_grad`` that does not call torch's.
    """
    zero_what_is_sharded()
    if told not in _told:
        _told.append(told)


@functools.cache
def zero_what_is_sharded() -> None:
    """Let ``zero_grad`` of modules zero the shards, too, of parameters that are shown whole; once a process.

    Between forward and backward the root shows what it has gathered, and so does each unit under
    SHARD_GRAD_OP and NO_SHARD. That has no gradients; those of the step before are its shards', and the new
    ones were added to them. A module around a model, or in one, may be torch's own: so its class is told.
    """
    of_optimizers, of_modules = Optimizer.zero_grad, nn.Module.zero_grad

    @functools.wraps(of_optimizers)
    def zero_grad_of_optimizer(self: Optimizer, *args: Any, **kwargs: Any) -> None:
        of_optimizers(self, *args, **kwargs)
        for tell in _told:
            tell(param for group in self.param_groups for param in group["params"])

    @functools.wraps(of_modules)
    def zero_grad_of_module(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        of_modules(self, *args, **kwargs)
        zeroed = list(self.parameters())
        shards = [shard for param in zeroed if (shard := shard_of(param)) is not None]
        if shards:
            of_modules(nn.ParameterList(shards), *args, **kwargs)
        for tell in _told:
            tell([*zeroed, *shards])

    # torch.compile leaves torch's own out, too. Each is put in once: torch 2.7 would take one that wraps
    # another such for that other.
    setattr(Optimizer, "zero_grad", torch.compiler.disable(zero_grad_of_optimizer))  # noqa: B010
    setattr(nn.Module, "zero_grad", torch.compiler.disable(zero_grad_of_module))  # noqa: B010
