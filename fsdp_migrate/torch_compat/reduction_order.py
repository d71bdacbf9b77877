"""When FSDP2 reduces a unit's gradients: once a backward, without touching what the unit is given.

A part of :mod:`fsdp_migrate.torch_compat`, and under its rule: no other file asks which torch this is or
touches its privates. What is replaced here was checked on 2.6, 2.7, 2.9, 2.13 and 2.15.
"""
# torch has no public way to say when a unit is reduced.

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState


if TYPE_CHECKING:
    from collections.abc import Iterable


def reduce_when_passed(groups: Iterable[Any]) -> None:
    """Reduce each of a model's parameter groups when backward has passed it, and leave its inputs alone.

    FSDP2 passes a unit's inputs through an autograd function, whose backward reduces the unit. So a list that
    a unit appends to is a copy, work in place on an input fails, gradients are summed in another order where
    an input has several users, and a unit that runs twice is reduced twice. FSDP1 hooks the parameters: it
    reduces once a backward, when all uses are over. Here the forward is recorded instead: autograd runs
    the last operation first, so that a unit is over when backward comes to one that had ended before it
    began. The others are reduced when backward ends, as FSDP2 does with units whose inputs need no gradient;
    but in the same order: a rank that runs a unit more often may pass it later than the others.
    """
    order = _Order()
    for group in groups:
        span = _Span(group, order)
        # On the instances: models that plain `fully_shard` has sharded keep torch's own methods.
        group._register_post_backward_hook = span.enter
        group.post_forward = span.leave
        group.pre_backward = span.begin_backward
        state = group.modules[0]._get_fsdp_state()
        # Any of them may be the first that backward comes to, which calls its own in the end.
        state._root_post_backward_final_callback = partial(_end_backward, state, order)


def _end_backward(state: Any, order: _Order) -> None:
    order.reduce_rest()
    type(state)._root_post_backward_final_callback(state)


def forget_forwards(groups: Iterable[Any]) -> None:
    """Forget the forwards so far, of a batch that broke off."""
    for group in groups:
        span = _span_of(group)
        if span is not None:
            span.release()
            span.order.forget()


def has_run(group: Any) -> bool:
    """Tell whether a group's unit was in the forwards whose backward is going on."""
    span = _span_of(group)
    return span is not None and span.start != math.inf


def in_order_of_forwards(groups: Iterable[Any]) -> list[Any]:
    """Return the groups whose units ran in the forwards whose backward is to come, the first to run first."""
    spans = [span for span in map(_span_of, groups) if span is not None and span.start != math.inf]
    return [span.group for span in sorted(spans, key=lambda span: span.start)]


def awaits_backward(group: Any) -> bool:
    """Tell whether a group's unit ran in the forwards whose backward goes on, and was not come to yet."""
    span = _span_of(group)
    return has_run(group) and span is not None and not span.is_over and span not in span.order.begun


def is_in_backward(group: Any) -> bool:
    """Tell whether backward has come to a group's unit, and not passed it."""
    span = _span_of(group)
    return span is not None and span in span.order.begun


def count_forward(groups: Iterable[Any]) -> None:
    """Hear that the model's forward begins; from the second before a backward on, reduce when that ends.

    Where ranks run different units in each, another unit is passed first on each rank.
    """
    for order in {id(span.order): span.order for span in map(_span_of, groups) if span is not None}.values():
        # A backward has begun since the last forward: this one is the first of another step.
        order.forwards = 1 if order.has_begun else order.forwards + 1
        order.defers = order.forwards > 1


def _span_of(group: Any) -> _Span | None:
    span = getattr(vars(group).get("_register_post_backward_hook"), "__self__", None)
    return span if isinstance(span, _Span) else None


class _Order:
    """What the units of one model have in common: a clock, and the units whose backward has begun."""

    def __init__(self) -> None:
        self.clock = 0
        self.spans: list[_Span] = []
        self.begun: list[_Span] = []
        self.has_begun = False
        self.forwards = 0
        self.defers = False

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    def forget(self) -> None:
        """Forget the forwards so far: their backward is over, or will not come."""
        for span in self.spans:
            span.start, span.end, span.is_over = math.inf, math.inf, False
        self.spans, self.begun, self.has_begun = [], [], False

    def reduce(self, over: list[_Span]) -> None:
        """Reduce units that are over, the one that ran last first: in the same order on every rank."""
        for span in [] if self.defers else sorted(over, key=lambda span: -span.start):
            self.begun.remove(span)
            span.is_over = True
            span.group.post_backward()
            # FSDP2 takes a forward in a unit's backward for its recomputation, and gathers nothing. This is
            # over; if reentrant checkpointing runs another of its forwards again, it must be gathered.
            span.group.modules[0]._get_fsdp_state()._training_state = TrainingState.IDLE

    def reduce_rest(self) -> None:
        """Reduce what is not, before torch does so in the order of its states, which has the root first."""
        for span in [] if self.defers else sorted(self.spans, key=lambda span: -span.start):
            if not span.is_over and span.group._training_state != TrainingState.POST_BACKWARD:
                span.group.post_backward()


@dataclass(eq=False)
class _Span:
    """From the first start to the last end of a unit's forwards, as the model's clock counts.

    ``entered_in`` and ``begun_in`` are the backward passes, if any, in which its last forward and its
    backward began: reentrant checkpointing runs both within a backward, the second as one of its own.
    """

    group: Any
    order: _Order
    start: float = math.inf
    end: float = math.inf
    entered_in: int = -1
    begun_in: int = -1
    was_training: bool = True
    is_over: bool = False
    is_kept: bool = False
    was_gathering: bool = True
    handles: list[Any] = field(default_factory=list)

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Record that a forward begins, in place of FSDP2's hook on the inputs."""
        self.release()
        if not torch.is_grad_enabled():
            return args, kwargs
        order, current = self.order, _current_backward()
        if current == -1:
            # Not in every forward: several may come before one backward, and are over together then.
            if order.has_begun or self._changed_mode():
                order.forget()
        else:
            # A backward within this one is over where this one goes on.
            order.reduce([s for s in order.begun if s.entered_in == current != s.begun_in and s is not self])
        if self.start == math.inf:
            order.spans.append(self)
            self.start = order.tick()
        self.end, self.is_over = math.inf, False
        self.entered_in = current
        self.was_training = self._is_training()
        return args, kwargs

    def leave(self, *args: Any, **kwargs: Any) -> Any:
        """Record that a forward ends."""
        if torch.is_grad_enabled() and self.start != math.inf:
            self.end = self.order.tick()
        return type(self.group).post_forward(self.group, *args, **kwargs)

    def begin_backward(self, *args: Any, **kwargs: Any) -> Any:
        """Reduce the units that backward has passed, and gather this one."""
        order = self.order
        self.release()
        # In a backward that is so under `create_graph` alone: another one may come, through the graph of this
        # one.
        if torch.is_grad_enabled():
            self.keep()
        order.has_begun = True
        # Backward goes through the forwards from the last to the first. So whatever began after this unit's
        # last end is behind it, in all of its forwards.
        order.reduce([span for span in order.begun if math.inf > span.start > self.end])
        if self not in order.begun:
            order.begun.append(self)
        self.begun_in = _current_backward()
        return type(self.group).pre_backward(self.group, *args, **kwargs)

    def keep(self) -> None:
        """Keep what a second backward, through the graph of this one (``create_graph``), will use.

        The memory of gathered parameters stays when they are freed, as under FSDP1 with NO_SHARD; the next
        gather writes the same values into it. That backward does not follow the order of the forwards, and
        may come to parameters without coming to a unit's output: then they ask for the reduction.
        """
        self.order.forget()
        self.is_kept = True
        self.was_gathering = self.group.unshard_in_backward
        for param in self.group.fsdp_params:
            param.free_unsharded_param = _do_nothing
            if param.sharded_param.requires_grad:
                whole = param._unsharded_param
                self.handles.append(whole.register_post_accumulate_grad_hook(self._reduce_in_the_end))

    def release(self) -> None:
        """Undo ``keep``; what is gathered is freed again from now on."""
        if not self.is_kept:
            return
        self.is_kept = False
        self.group.unshard_in_backward = self.was_gathering
        for param in self.group.fsdp_params:
            vars(param).pop("free_unsharded_param", None)
        while self.handles:
            self.handles.pop().remove()

    def _reduce_in_the_end(self, parameter: torch.Tensor) -> None:
        del parameter
        # Of units that are not gathered, torch 2.6 reduces in the end only those that backward gathers not.
        self.group.unshard_in_backward = False
        self.group.modules[0]._get_fsdp_state()._register_root_post_backward_final_callback()

    def _changed_mode(self) -> bool:
        """Tell whether an evaluation without a backward comes before this first forward of a step."""
        is_first = bool(self.order.spans) and self.order.spans[0] is self
        return is_first and self.was_training != self._is_training()

    def _is_training(self) -> bool:
        return bool(self.group.modules[0].training)


def is_outside_backward() -> bool:
    """Tell whether no backward runs in this thread."""
    return _current_backward() == -1


def _do_nothing() -> None:
    pass


def _current_backward() -> int:
    """Return a number of the backward that runs in this thread, or -1 (2.6 to 2.15)."""
    number: int = torch._C._current_graph_task_id()
    return number
