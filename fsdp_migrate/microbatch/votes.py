"""Votes of the ranks within a batch: on failures, on what comes next, and on who only joins in.

Each collective of FSDP2 is preceded by a vote, an all-reduce of a few numbers between the CPUs: is every rank
still well, and is it about to do the same? It is taken when everything that the collective needs is
allocated, so that no rank can fail between the vote and the collective. A rank that has failed takes part in
the next vote that the others come to, and then all of them stop.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from fsdp_migrate.errors import (
    BatchError,
    BatchOutOfMemoryError,
    RankError,
    RanksDivergedError,
)
from fsdp_migrate.findings import counted
from fsdp_migrate.sharding.rank_channel import ranks_by_text
from fsdp_migrate.torch_compat.collectives import watch_collectives
from fsdp_migrate.torch_compat.param_groups import end_backward, initialise_lazily, parameter_groups


if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from torch import nn

    from fsdp_migrate.sharding.rank_channel import RankChannel
    from fsdp_migrate.torch_compat.collectives import CollectiveKind
    from fsdp_migrate.torch_compat.param_groups import ParameterGroup


Step = Literal["all-gather", "all-gather from fewer ranks", "reduction", "end of a microbatch", "end"]

_STEPS: tuple[Step, ...] = (
    "all-gather",
    "all-gather from fewer ranks",
    "reduction",
    "end of a microbatch",
    "end",
)
_SILENT = -(2**40)
"""The vote of a rank that does not say what comes next: the least of all, for MAX is taken."""


def raise_failures(channel: RankChannel, own: str | None) -> None:
    """Raise the error that all ranks raise when some have failed; ``own`` is this rank's reason."""
    reasons = channel.exchange(own)
    kind = BatchOutOfMemoryError if all(map(_is_memory, reasons.values())) else BatchError
    which = "; ".join(f"rank {rank}: {reason}" for rank, reason in reasons.items())
    msg = f"Every rank stops in the middle of a batch, because of {which}"
    raise kind(msg, reasons=reasons)


_OUT_OF_MEMORY = "out of memory: "


def describe_failure(error: BaseException | None) -> str:
    """Say why a rank failed; None means that its loop was left without an error that could be seen."""
    if error is None:
        return "its loop was left before the last microbatch, by an error of its own or a `break`"
    first_line = str(error).partition("\n")[0]
    text = f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__
    return _OUT_OF_MEMORY + text if _ran_out_of_memory(error) else text


def _ran_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    # What libraries and the CPU's allocator raise has no class of its own.
    signs = ("out of memory", "can't allocate memory", "_ALLOC_FAILED")
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in signs)


def _is_memory(reason: str) -> bool:
    return reason.startswith(_OUT_OF_MEMORY)


@dataclass(frozen=True)
class _Operation:
    """What a rank is about to do, in a microbatch; ``used`` are the parameters that have gradients."""

    step: Step
    microbatch: int
    group: int = 0
    used: tuple[bool, ...] = ()


class Votes:
    """The votes of one batch. Watches the model's collectives from ``start`` to ``stop``."""

    def __init__(self, model: nn.Module, channel: RankChannel) -> None:
        self._model = model
        self._channel = channel
        self._groups = parameter_groups(model)
        self._places = {
            id(parameter): (number, place)
            for number, group in enumerate(self._groups)
            for place, parameter in enumerate(group.parameters)
        }
        # Every vote has room for the widest unit: an all-reduce needs as many numbers on every rank.
        self._width = max(len(group.parameters) for group in self._groups)
        self._watching = ExitStack()
        self._prepared: _Operation | None = None
        self._microbatch = 0
        self._has_followers = False
        self._is_following = False
        self.is_active = False
        self.failure: str | None = None

    def start(self) -> None:
        """Begin to watch; every rank must do so at the same place of the batch."""
        if not self.is_active:
            self._watching.enter_context(watch_collectives(self))
            self.is_active = True  # first, so that what fails here is told to the others
            initialise_lazily(self._model)

    def stop(self) -> None:
        """Watch no more."""
        self._watching.close()
        self.is_active = False

    def begin_microbatch(self, number: int, *, has_followers: bool) -> None:
        """Tell which microbatch comes, and whether some ranks have none and must be told what to join."""
        self._microbatch, self._has_followers = number, has_followers

    def end_microbatch(self) -> None:
        """Tell those that follow that this microbatch is over."""
        if self._has_followers:
            self._vote(_Operation("end of a microbatch", self._microbatch))

    def end(self) -> None:
        """Take the last vote of the batch."""
        self._vote(_Operation("end", self._microbatch))
        self.stop()

    def fail(self, error: BaseException | None) -> None:
        """Take part in the next vote of the others as one who failed.

        Raises:
            BatchError: Always: the error that all of them raise.
        """
        self.stop()
        # As many numbers as in every vote: it is the next one of the others.
        self._channel.maximum([1, *[_SILENT] * (2 + 2 * self._width)])
        raise_failures(self._channel, describe_failure(error))

    def follow(self) -> None:
        """Take part, with nothing of its own, in the collectives of a microbatch of other ranks."""
        self._is_following = True
        try:
            while (operation := self._vote(None)).step != "end of a microbatch":
                group = self._groups[operation.group]
                if operation.step == "reduction":
                    if unexpected := group.join_reduction(operation.used):
                        self._raise_unexpected(group, unexpected)
                else:
                    group.join_all_gather()
            # No backward ran here, so that nothing calls what FSDP2 has queued for the end of one.
            end_backward(self._model)
        finally:
            self._is_following = False

    def before_allocating(self, kind: CollectiveKind, parameters: Sequence[Any]) -> bool:
        """Tell followers what comes, if there are any. Called by the watch."""
        places = [self._places.get(id(parameter)) for parameter in parameters]
        if not places or places[0] is None:
            return False
        number = places[0][0]
        group = self._groups[number]
        step: Step = kind
        if kind == "all-gather" and group.gathers_from_fewer_ranks:
            step = "all-gather from fewer ranks"
        used: tuple[bool, ...] = ()
        if kind == "reduction":
            present = {place for _, place in filter(None, places)}
            used = tuple(place in present for place in range(len(group.parameters)))
        self._prepared = _Operation(step, self._microbatch, number, used)
        # Two votes where ranks follow: they have to hear what to prepare before they can say that it fits.
        if self._has_followers and not self._is_following:
            self._vote(self._prepared)
        return True

    def before_sending(self) -> None:
        """Vote on the collective that is prepared. Called by the watch."""
        self._vote(self._prepared)

    def _vote(self, own: _Operation | None) -> _Operation:
        # One all-reduce, however many questions: collectives are small here, and their number is the cost.
        votes = self._channel.maximum([0, *self._encode(own)])
        highest, lowest = votes[1 : 2 + self._width], votes[2 + self._width :]
        try:
            if votes[0]:
                raise_failures(self._channel, None)
            if highest != [-number for number in lowest]:
                self._raise_divergence(own)
        except RankError as error:
            self.stop()
            # Not the error: its traceback leads back here, and such a cycle holds activations. Worse, torch
            # 2.7 loses the insides of DTensors, such as gradients, that the garbage collector meets in one.
            self.failure = str(error)
            raise
        return self._decode(highest)

    def _encode(self, own: _Operation | None) -> list[int]:
        """Return the operation as numbers, and their negatives: their maxima show whether all are equal."""
        if own is None:
            return [_SILENT] * (2 + 2 * self._width)
        used = [int(flag) for flag in own.used] + [0] * (self._width - len(own.used))
        code = (own.microbatch * len(_STEPS) + _STEPS.index(own.step)) * len(self._groups) + own.group
        return [code, *used, -code, *[-flag for flag in used]]

    def _decode(self, numbers: Sequence[int]) -> _Operation:
        rest, group = divmod(numbers[0], len(self._groups))
        microbatch, step = divmod(rest, len(_STEPS))
        used = tuple(map(bool, numbers[1 : 1 + len(self._groups[group].parameters)]))
        return _Operation(_STEPS[step], microbatch, group, used)

    def _raise_divergence(self, own: _Operation | None) -> None:
        operations = self._channel.exchange(None if own is None else self._describe(own))
        msg = (
            "The ranks do not run the same units. They were about to do different things: "
            f"{ranks_by_text(operations)}. Every rank must run the same units in the same order, "
            "whatever its data."
        )
        raise RanksDivergedError(msg, operations=operations)

    def _raise_unexpected(self, group: ParameterGroup, names: Sequence[str]) -> None:
        msg = (
            f"`{group.name}` has gradients of {', '.join(f'`{name}`' for name in names)} on this rank, and "
            "the ranks with more microbatches have none. Every rank must use the same parameters."
        )
        raise RanksDivergedError(msg, operations={})

    def _describe(self, operation: _Operation) -> str:
        where = f"microbatch {operation.microbatch}"
        if operation.step in {"end of a microbatch", "end"}:
            return f"nothing more in {where}"
        group = self._groups[operation.group]
        text = f"{operation.step} of `{group.name}` in {where}"
        if operation.step == "reduction" and not all(operation.used):
            text += f", {sum(operation.used)} of {counted(len(operation.used), 'parameter')}"
        return text
