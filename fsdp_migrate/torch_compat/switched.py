"""What a script does to whole parameters that a unit shows: kept, or undone, when they are sharded again.

A part of :mod:`fsdp_migrate.torch_compat`, and under its rule: no other file asks which torch this is or
touches its privates. What is read here was checked on 2.6, 2.7 and 2.13.
"""
# torch copies `requires_grad` from shards to what it gathers, and never back; and it makes the whole
# parameters once, as views of what it gathers into.

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
from torch.utils.weak import WeakTensorKeyDictionary


if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn


_GATHERED: Any = WeakTensorKeyDictionary()
"""From parameters that FSDP2 has gathered to what it knows of them, which holds them: so both are weak."""


def keep_switches(groups: Iterable[Any]) -> None:
    """Keep what a script sets by ``requires_grad_`` on parameters that a unit shows whole.

    A unit that is not sharded again after forward (the root; each under SHARD_GRAD_OP and NO_SHARD) shows its
    gathered parameters after an evaluation. What is set on them was lost with them at the next backward,
    and what is set on the shards meanwhile was not computed with. FSDP1's parameters were one and the same.
    """
    for group in groups:
        switches = _Switches(group)
        for name in ("unshard", "_to_unsharded", "_to_sharded", "_to_sharded_post_forward"):
            setattr(group, name, getattr(switches, name.removeprefix("_")))


def name_of_gathered(param: torch.Tensor) -> str | None:
    """Return the name of a parameter that FSDP2 has gathered, which optimizers cannot train; or None."""
    known = _of_gathered(param)
    return None if known is None else str(known._param_fqn or known._module_info.param_name)


def shard_of(param: torch.Tensor) -> nn.Parameter | None:
    """Return the shard of a parameter that FSDP2 has gathered, which holds its gradient; or None."""
    known = _of_gathered(param)
    if known is None:
        return None
    shard: nn.Parameter = known.sharded_param
    return shard


def _of_gathered(param: torch.Tensor) -> Any:
    held = _GATHERED.get(param)
    return None if held is None else held()


def undo_casts(params: Iterable[Any]) -> None:
    """Make whole parameters views of what is gathered again, where a forward has cast their module.

    Routers of experts do: ``self.classifier = self.classifier.to(torch.float32)``. That gave the parameter
    memory of its own, for good: no later gather would have come there. Under FSDP1 each gather made new
    views, and autograd brought the gradient back to their dtype.
    """
    for param in params:
        if not hasattr(param, "_unsharded_param") or len(param.all_gather_outputs) != 1:
            continue
        whole, gathered = param._unsharded_param, param.all_gather_outputs[0]
        # What the hooks of a weight's class make, and DTensors of tensor parallelism, are no plain views.
        if type(whole.data) is not torch.Tensor:
            continue
        gradient = whole.grad
        if whole.dtype != gathered.dtype:
            param.was_cast = True
            whole.grad = None  # it may not be of another dtype than the data
            # As torch's `init_unsharded_param` makes it, in the first gather alone.
            whole.data = torch.as_strided(gathered, param._orig_size, param._contiguous_orig_stride, 0)
        # torch 2.15 sets None for the time of a backward: what waits from earlier ones is of a wider dtype.
        expected = getattr(whole, "grad_dtype", whole.dtype)
        if expected is None and getattr(param, "was_cast", False):
            expected = whole.dtype
        if gradient is not None and expected not in {None, getattr(whole.grad, "dtype", None)}:
            whole.grad = gradient.to(expected)


class _Switches:
    """A group's changes between whole parameters and shards, with what is trained taken along."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self._trained: list[bool] = []
        """What was trained when both, whole and sharded, last agreed; nothing while there are only shards."""

    def unshard(self, *args: Any, **kwargs: Any) -> Any:
        self._carry()  # where the parameters are whole already, torch leaves them as they are
        return type(self._group).unshard(self._group, *args, **kwargs)

    def to_unsharded(self) -> None:
        type(self._group)._to_unsharded(self._group)
        params = self._group.fsdp_params
        undo_casts(params)
        self._trained = [param.sharded_param.requires_grad for param in params]
        for param in params:
            # For `zero_grad`, and for the check of optimizers at their step: one that holds whole parameters
            # would train nothing.
            _GATHERED[param._unsharded_param] = ref(param)

    def to_sharded(self) -> None:
        self._carry()
        self._trained = []
        type(self._group)._to_sharded(self._group)

    def to_sharded_post_forward(self) -> None:
        self._carry()
        self._trained = []
        type(self._group)._to_sharded_post_forward(self._group)

    def _carry(self) -> None:
        """Take over what was set since: on whole parameters, or else on their shards."""
        params = self._group.fsdp_params if self._trained else ()
        for index, param in enumerate(params):
            whole, shard, before = param._unsharded_param, param.sharded_param, self._trained[index]
            if before == whole.requires_grad == shard.requires_grad:
                continue
            # Whichever differs from before was set since. If both do they agree: there are two values only.
            trained = whole.requires_grad if whole.requires_grad != before else shard.requires_grad
            for each in (whole, shard):
                each.requires_grad_(trained)
            self._trained[index] = trained
