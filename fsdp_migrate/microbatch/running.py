"""``microbatches``: what FSDP2 communicates in which microbatch, whatever the number of them on each rank."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, get_args
from weakref import WeakKeyDictionary, WeakSet, ref

import torch.distributed as dist
from torch import nn

from fsdp_migrate.arguments import FLAG, TEXT, check_arguments
from fsdp_migrate.errors import (
    BatchError,
    ConfigError,
    MicrobatchError,
    ProcessGroupError,
    RankError,
)
from fsdp_migrate.findings import counted
from fsdp_migrate.microbatch.rollback import Rollback
from fsdp_migrate.microbatch.votes import Votes, describe_failure, raise_failures
from fsdp_migrate.sharding.rank_channel import channel_of
from fsdp_migrate.sharding.skipped_units import agrees_on_units
from fsdp_migrate.sharding.structure import check_is_module
from fsdp_migrate.sharding.told_in_training import tell_where_gradients_add_up
from fsdp_migrate.torch_compat.param_groups import ParameterGroup, parameter_groups, reset_after_failure


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType

    from fsdp_migrate.sharding.rank_channel import RankChannel


logger = logging.getLogger("fsdp_migrate.microbatch")

PartT = TypeVar("PartT")
ResultT = TypeVar("ResultT")
Comms = Literal["auto", "every", "last"]

_COMMS: tuple[Comms, ...] = get_args(Comms)
_told: WeakSet[nn.Module] = WeakSet()
_running: WeakKeyDictionary[nn.Module, ref[Microbatches[Any]]] = WeakKeyDictionary()


def microbatches(
    model: nn.Module, batch_parts: Iterable[PartT], *, comms: Comms = "auto", agree: bool = False
) -> Microbatches[PartT]:
    """Iterate over the parts of a batch, and set what FSDP2 communicates in each.

    For a loop whose body runs forward and backward once for each part. Every rank of the model must run the
    loop; they may have different numbers of parts, or none. A rank that has run out takes part in what is
    left of the others' collectives with gradients of zero, while its loop asks for the next part. It runs
    neither the model nor the body meanwhile, so that buffers such as BatchNorm's, random numbers and what
    the body counts are left alone.

    The gradient is the mean over **all** ranks of the sum over each rank's parts. So divide each loss by
    what does not depend on how the batch was cut: for the mean over the tokens of all ranks, multiply the
    sum over a part's tokens by the number of ranks, and divide it by the number of tokens on all ranks.

    Changes: which gradients are reduced, and when; every setting is put back when the loop ends, is left or
    raises (in torch they are sticky). Leaves alone: parameters, ``reshard_after_forward``, prefetching.

    Args:
        model: A model sharded by :func:`prepare_fully_shard` or ``fully_shard``, as a whole or in part.
            Other sharded models in the body are not looked after: with them, ranks need equal numbers.
        batch_parts: The parts, or something that loads them: all are loaded before the first is run, so
            that what fails in loading is an error on every rank.
        comms: What backward communicates. ``every``: each microbatch reduce-scatters, and replicas (HSDP)
            all-reduce in the last only; gradients stay sharded. ``last``: only the last communicates, as
            FSDP1 did under ``no_sync``; until then each rank holds the gradients of all parameters,
            unsharded and in the reduce dtype: 4 bytes per parameter in float32 (the log says how much).
            ``auto``: what FSDP1 did without ``no_sync``, with the least traffic: as ``every``, but replicas
            all-reduce each time where sums over microbatches would be held in a dtype narrower than the
            parameters'. FSDP1 all-reduced each time; so with replicas, and only there, the order of sums
            differs from its.
        agree: Vote before each collective, so that what fails on one rank (out of memory, the body's own
            errors) is the same :class:`BatchError` on all ranks, with FSDP2, gradients, buffers and random
            numbers put back to where they were before the batch; and so that ranks that run different units
            are a :class:`RanksDivergedError` that names them, not a hang. False costs nothing; the ranks
            then vote only in microbatches that some of them do not have.

    Returns:
        An iterator over this rank's parts. With ``agree``, make it a context manager too (``with
        microbatches(...) as parts``): only then does the rank that failed raise the same error as the
        others, rather than its own. Without ``with``, do not keep it in a variable: the others hear of the
        failure when it is deleted.

    Raises:
        ConfigError: ``comms`` is none of the three.
        ModelError: The model holds no unit of FSDP2.
        ProcessGroupError: No process group is initialised.
        MicrobatchError: No rank has a microbatch, or ranks have other settings; on every rank.
        BatchError: A rank could not load its parts or, under ``agree``, failed in the loop; on every rank.
            :class:`BatchOutOfMemoryError` if for lack of memory only.
        RanksDivergedError: The ranks ran different units.

    Example:
        >>> import torch, torch.distributed as dist
        >>> from torch.distributed.fsdp import fully_shard
        >>> from fsdp_migrate.runtime import end_process_group
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> model = fully_shard(nn.Linear(2, 1), mesh=dist.init_device_mesh("cpu", (1,)))
        >>> rows = torch.ones(3, 2)
        >>> for part in microbatches(model, rows.split(2)):
        ...     (model(part).sum() / len(rows)).backward()
        >>> model.bias.grad.full_tensor()
        tensor([1.])
        >>> end_process_group()
    """
    check_is_module(model)
    check_arguments(TEXT, comms=comms)
    check_arguments(FLAG, agree=agree)
    if comms not in _COMMS:
        msg = f"`comms` is {comms!r}; expected one of {', '.join(map(repr, _COMMS))}."
        raise ConfigError(msg, field="comms")
    if not dist.is_initialized():
        msg = "There is no process group, and so no rank to communicate with. Start with torchrun."
        raise ProcessGroupError(msg)
    return Microbatches(model, batch_parts, comms, agree=agree)


class Microbatches(Generic[PartT]):
    """The iterator that :func:`microbatches` returns; a context manager, which puts everything back."""

    def __init__(self, model: nn.Module, parts: Iterable[PartT], comms: Comms, *, agree: bool) -> None:
        self._model = model
        self._given = parts
        self._comms = comms
        self._agree = agree
        self._parts: list[PartT] = []
        self._shortest = self._longest = 0
        self._index = -1
        self._groups: list[ParameterGroup] = []
        self._settings: list[tuple[bool, bool]] = []
        self._channel: RankChannel | None = None
        self._votes: Votes | None = None
        self._rollback: Rollback | None = None
        self._is_over = False
        self._gave_way = False

    def __iter__(self) -> Iterator[PartT]:
        return self

    def __next__(self) -> PartT:
        if self._gave_way:
            msg = (
                "Another loop over microbatches of the same model began before this one ended, and has "
                "dropped its gradients. Run one after the other, and leave a loop by `with`."
            )
            raise MicrobatchError(msg)
        if self._is_over or not self._guarded(self._advance):
            raise StopIteration
        return self._parts[self._index]

    def __enter__(self) -> Microbatches[PartT]:
        if self._index < 0 and not self._is_over:
            self._guarded(self._begin)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._break_off(error)

    def __del__(self) -> None:
        # A loop drops its iterator as soon as an error leaves it; the error itself cannot be seen from here.
        if not getattr(self, "_is_over", True) and not sys.is_finalizing():
            self._leave()

    def _leave(self) -> None:
        try:
            self._break_off(None)
        except RankError as error:
            logger.debug("%s", error)

    def give_way(self) -> None:
        """End the loop if it has not ended, for the sake of another over the same model."""
        if not self._is_over:
            self._gave_way = True
            self._leave()

    def _take_over(self) -> None:
        """End a loop over the model that was left in a variable: its settings are not the user's."""
        last = _running.get(self._model)
        other = None if last is None else last()
        if other is not None:
            other.give_way()
        _running[self._model] = ref(self)

    def _guarded(self, work: Callable[[], ResultT]) -> ResultT:
        try:
            return work()
        # Ctrl-C as well: settings are put back whatever ends the loop.
        except BaseException as error:
            self._break_off(error)
            raise

    def _advance(self) -> bool:
        """Go to the next microbatch of this rank, and join those of others; return whether there is one."""
        if self._votes is not None and self._votes.failure is not None:
            # The body has caught it, and the other ranks have stopped.
            raise BatchError(self._votes.failure, reasons={})
        if self._index >= 0:
            self._end_microbatch()
        elif self._channel is None:
            self._begin()
        self._index += 1
        # A rank that has no part left stays here, and joins what the others do.
        while self._index < self._longest:
            self._begin_microbatch()
            if self._index < len(self._parts):
                return True
            if self._votes is not None:
                self._votes.follow()
            self._index += 1
        if self._votes is not None and self._votes.is_active:
            self._votes.end()
        if self._shortest < self._longest:
            for group in self._groups:
                group.reshard()  # so that every rank gathers the same units in the next batch
        self._put_back()
        return False

    def _begin(self) -> None:
        self._take_over()
        channel = self._channel = channel_of(self._model)
        self._groups = parameter_groups(self._model)
        self._settings = [group.reduces for group in self._groups]
        failure: Exception | None = None
        try:
            self._parts = list(self._given)
        except Exception as error:
            failure = error
        # Also after a failure: the others wait for this rank's numbers.
        self._count(channel, failure)
        if self._agree or self._shortest < self._longest:
            self._votes = Votes(self._model, channel)
        if self._agree and self._votes is not None:
            # In this order: memory that runs out while the rollback copies is then told to the other ranks.
            self._votes.start()
            self._rollback = Rollback(self._model)
        if self._comms != "last" and self._longest > 1:
            for group in self._groups:
                group.mend_partial_sums()
        if self._comms == "last" and self._longest > 1:
            tell_where_gradients_add_up(self._model, self._groups)
        self._tell_what_is_held(channel)

    def _count(self, channel: RankChannel, failure: Exception | None) -> None:
        """Agree with the other ranks on the numbers of microbatches, and on the settings."""
        sizes = [len(group.parameters) for group in self._groups]
        own = [len(self._parts), _COMMS.index(self._comms), int(self._agree), len(sizes), max(sizes)]
        # With the negatives the maximum is the minimum, too: one collective, not two.
        votes = channel.maximum([int(failure is not None), *own, *[-number for number in own]])
        if votes[0]:
            raise_failures(channel, None if failure is None else describe_failure(failure))
        highest, lowest = votes[1:6], [-number for number in votes[6:]]
        if highest[3:] != lowest[3:]:
            msg = (
                f"The ranks' models differ: this one has {counted(len(sizes), 'unit')}, of up to "
                f"{counted(max(sizes), 'parameter')}, and another has others. Shard the same model in "
                "the same way on every rank."
            )
            raise MicrobatchError(msg)
        if highest[1:] != lowest[1:]:
            msg = (
                "The ranks gave `microbatches` different settings: "
                f"this one comms={self._comms!r}, agree={self._agree}. Give the same on every rank."
            )
            raise MicrobatchError(msg)
        self._shortest, self._longest = lowest[0], highest[0]
        if self._longest == 0:
            msg = (
                "No rank has a microbatch, so there is nothing to run. Skip the batch on every rank, or look "
                "at what cuts it into `batch_parts`."
            )
            raise MicrobatchError(msg)
        if self._shortest < self._longest:
            self._check_forward_alone()
        if agrees_on_units(self._model) and (self._agree or self._shortest < self._longest):
            self._raise_agreed_twice()

    def _raise_agreed_twice(self) -> None:
        counts = f"{self._shortest} to {self._longest} microbatches on a rank"
        msg = (
            "The model was prepared with `skipped_units`, under which ranks agree on each unit already. "
            f"{'`agree=True`' if self._agree else counts} would have them agree a second time. Give each "
            "rank the same number, and `agree=False`."
        )
        raise MicrobatchError(msg)

    def _check_forward_alone(self) -> None:
        for name, module in self._model.named_modules():
            if isinstance(module, nn.SyncBatchNorm) and module.training:
                msg = (
                    f"`{name}` is a SyncBatchNorm, whose forward needs every rank, and ranks have "
                    f"{self._shortest} to {self._longest} microbatches. Give each the same number, or use "
                    "BatchNorm."
                )
                raise MicrobatchError(msg)

    def _begin_microbatch(self) -> None:
        is_last = self._index == self._longest - 1
        has_followers = self._index >= self._shortest
        for group in self._groups:
            # In a dtype narrower than the parameters' each microbatch would round the sum that waits for the
            # replicas.
            defers = self._comms == "every" or group.sums_in_full_precision
            group.reduces = (is_last, is_last) if self._comms == "last" else (True, is_last or not defers)
        if self._votes is not None and (self._agree or has_followers):
            self._votes.start()
            self._votes.begin_microbatch(self._index, has_followers=has_followers)

    def _end_microbatch(self) -> None:
        if self._index == self._longest - 1:
            for group in self._groups:
                group.reduce_what_waits()
        if self._votes is not None and self._votes.is_active:
            self._votes.end_microbatch()

    def _break_off(self, error: BaseException | None) -> None:
        """Put everything back in the middle of a batch, and tell the other ranks if they listen."""
        if self._is_over:
            return
        self._is_over = True
        votes = self._votes
        try:
            # The others first, who wait in a vote; what follows concerns this rank alone.
            if votes is not None and votes.is_active:
                self._tell(votes, error)
        finally:
            if votes is not None:
                votes.stop()
            if self._index >= 0:
                # What waits for a reduction would otherwise come up in the next batch.
                reset_after_failure(self._model)
            if self._rollback is not None:
                self._rollback.restore()
            self._put_back()

    def _tell(self, votes: Votes, error: BaseException | None) -> None:
        try:
            votes.fail(error)
        except BatchError as common:
            # Exit and interrupts go on as what they are, and a `break` is no error where it happens.
            if isinstance(error, Exception):
                raise common from error

    def _put_back(self) -> None:
        self._is_over = True
        for group, reduces in zip(self._groups, self._settings, strict=False):
            group.reduces = reduces
            group.unmend_partial_sums()
        self._parts = []

    def _tell_what_is_held(self, channel: RankChannel) -> None:
        is_first = dist.get_rank() == channel.ranks[0]
        if self._comms != "last" or self._longest == 1 or self._model in _told or not is_first:
            return
        _told.add(self._model)
        size = sum(group.unsharded_gradient_bytes for group in self._groups)
        logger.info(
            "comms='last' holds unsharded gradients between microbatches: %.1f MB on each rank.", size / 1e6
        )
