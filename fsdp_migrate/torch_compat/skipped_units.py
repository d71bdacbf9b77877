"""Units that this rank does not run, and others do: their collectives joined, and where passes begin and end.

A part of :mod:`fsdp_migrate.torch_compat`, and under its rule: no other file asks which torch this is or
touches its privates. What is read here was checked on 2.7 and 2.13.
"""
# torch has no way to take part in a unit's collectives without running it.

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard import _fsdp_param_group
from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState

from fsdp_migrate.torch_compat.param_groups import ParameterGroup, parameter_groups
from fsdp_migrate.torch_compat.reduction_order import (
    awaits_backward,
    count_forward,
    has_run,
    in_order_of_forwards,
    is_in_backward,
    is_outside_backward,
)


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import nn


JOINS_REENTRANT = hasattr(_fsdp_param_group, "is_bw")
"""Whether units that reentrant checkpointing runs in backward can be skipped; on 2.7 ranks differ then."""


class JoinableUnit:
    """A unit whose collectives a rank can join that does not run it."""

    def __init__(self, unit: ParameterGroup) -> None:
        self._unit = unit
        self._group: Any = unit._group
        self.name = unit.name
        self.parameters: list[Any] = unit.parameters

    @property
    def is_new_in_backward(self) -> bool:
        """Whether the forward left no graph of the unit, which reentrant checkpointing then runs again."""
        return not is_outside_backward() and not has_run(self._group)

    def join_gather(self, *, in_backward: bool) -> None:
        """Take part in an all-gather for the sake of other ranks, and leave the unit as theirs are after it.

        In backward, what this rank will need itself waits for it, as if prefetched. A unit that this rank has
        gathered is gathered again, into the same memory.
        """
        group = self._group
        ahead = in_backward and group.unshard_in_backward  # otherwise torch sends nothing in backward
        # torch asks the state on which stream to gather; and in PRE_BACKWARD it sends nothing where
        # `unshard_in_backward` is off, though others wait.
        with group.use_training_state(TrainingState.PRE_BACKWARD if ahead else TrainingState.FORWARD):
            group.wait_for_unshard()  # of a prefetch
            was_whole = group.is_unsharded
            # torch's unshard() sends nothing for what is gathered, and others wait for this rank's part.
            if was_whole:
                group._to_sharded()
            group.unshard(False)
            if ahead and not was_whole and awaits_backward(group):
                return
            group.wait_for_unshard()
        stays = not in_backward and not group._reshard_after_forward
        if not was_whole and not stays:
            group._to_sharded()

    def join_reduction(self, *, backward_ends: bool) -> bool:
        """Take part in a reduction with the gradients that are here, and zeros for the rest.

        Returns whether this could be done: not while backward is in the unit, or reduces nothing here.
        """
        group = self._group
        if (is_in_backward(group) and not backward_ends) or not group.reduce_grads:
            return False
        trained = [param.sharded_param for param in self.parameters]
        self._unit.join_reduction([each.requires_grad and each.numel() > 0 for each in trained])
        state = getattr(group.comm_ctx, "reduce_scatter_state", None)
        if state is not None:  # up to 2.9 there is place for one, and this rank's own comes next
            group.device_handle.current_stream().wait_event(state.event)
            group.comm_ctx.reduce_scatter_state = None
        return True

    def end_backward(self) -> None:
        """Reduce what backward has not reduced, as torch does when it ends."""
        if self._group._training_state != TrainingState.POST_BACKWARD:
            self._group.post_backward()


def joinable_units(model: nn.Module) -> list[JoinableUnit]:
    """Return the model's units, each once, in the same order on every rank."""
    return [JoinableUnit(group) for group in parameter_groups(model)]


class Passes(Protocol):
    """Who is told where a model's forwards and backwards begin and end."""

    def begin_forward(self) -> None:
        """Hear that the model's forward begins, before anything is gathered."""

    def end_forward(self, ran: Sequence[JoinableUnit]) -> None:
        """Hear that it has ended, and which units await a backward, in the order in which they ran."""

    def reduce_rest(self) -> None:
        """Hear that a backward ends. ``end_backward`` of the units is to be called."""


def watch_passes(model: nn.Module, units: Iterable[JoinableUnit], passes: Passes) -> None:
    """Tell of each of the model's forwards and backwards from now on, recomputed forwards left out."""
    of_group = {id(unit._group): unit for unit in units}

    def begin(module: nn.Module, args: Any) -> None:
        del module, args
        if is_outside_backward():
            if torch.is_grad_enabled():
                count_forward(unit._group for unit in of_group.values())
            passes.begin_forward()

    def end(module: nn.Module, args: Any, output: Any) -> None:
        del module, args, output
        if is_outside_backward():
            ran = in_order_of_forwards(unit._group for unit in of_group.values())
            passes.end_forward([of_group[id(group)] for group in ran])

    # Before FSDP2's own, which gathers the root; and after its own.
    model.register_forward_pre_hook(torch.compiler.disable(begin), prepend=True)
    model.register_forward_hook(torch.compiler.disable(end))
    for module in model.modules():
        if isinstance(module, FSDPModule):
            state: Any = module._get_fsdp_state()
            # Any of them may be the first that backward comes to, which calls its own in the end.
            state._root_post_backward_final_callback = partial(_end_backward, state, passes)


def _end_backward(state: Any, passes: Passes) -> None:
    # Before torch's own, which reduces what is left in the order of its states: ranks that ran other units
    # would reduce other ones at the same time.
    passes.reduce_rest()
    type(state)._root_post_backward_final_callback(state)
