"""Units that some ranks skip: a batch without images beside one with, an expert without tokens.

FSDP gathers and reduces a unit when it runs. A rank that does not run it goes on to its next unit, whose
bytes the others then take for those of theirs, or waits for ever. So here the ranks agree before each
collective, by an all-reduce of six numbers between the CPUs: each says what it is about to do, all do one of
these things, and who had said another joins in with nothing of its own, and asks again. A rank that has come
to the end of its forward, or of its backward, asks until all have.

Which of several things is done first does not matter for what comes out, but for how much is sent: if units
are taken in the order in which they run, each is gathered once, and reduced once. The ranks learn the order
from their forwards.
"""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args
from weakref import WeakKeyDictionary, finalize, ref

from fsdp_migrate.errors import RanksDivergedError, UnsupportedFeatureError
from fsdp_migrate.sharding.rank_channel import channel_of, ranks_by_text
from fsdp_migrate.torch_compat.collectives import watch_collectives
from fsdp_migrate.torch_compat.reduction_order import is_outside_backward
from fsdp_migrate.torch_compat.skipped_units import JOINS_REENTRANT, joinable_units, watch_passes


if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from fsdp_migrate.sharding.skipping import SkippedUnits
    from fsdp_migrate.torch_compat.collectives import CollectiveKind
    from fsdp_migrate.torch_compat.skipped_units import JoinableUnit


Step = Literal["end", "reduction", "all-gather"]
Where = Literal["forward", "backward", "between"]

_STEPS: tuple[Step, ...] = get_args(Step)
"""What is done first is last: a rank that reduces has nothing left to compute in the unit."""
_WHERE: tuple[Where, ...] = get_args(Where)
_PLACES = 2**20
"""More than a place in the order can be."""

_agreements: WeakKeyDictionary[nn.Module, Agreement] = WeakKeyDictionary()


def agree_on_units(model: nn.Module, mode: SkippedUnits) -> None:
    """Let the ranks of a sharded model agree on what they gather and reduce; a collective call of them."""
    agreement = Agreement(model, mode)
    watching = ExitStack()
    # By a weak reference: the watched are held for as long as something watches.
    watching.enter_context(watch_collectives(_Watcher(ref(agreement))))
    finalize(model, watching.close)
    watch_passes(model, agreement.units, agreement)
    _agreements[model] = agreement


def agrees_on_units(model: nn.Module) -> bool:
    """Tell whether a model was prepared with ``skipped_units``."""
    return model in _agreements


@dataclass(frozen=True)
class _Operation:
    """What a rank is about to do."""

    step: Step
    unit: int = 0


_END = _Operation("end")


class Agreement:
    """What the ranks of one model have agreed on so far."""

    def __init__(self, model: nn.Module, mode: SkippedUnits) -> None:
        self._channel = channel_of(model)
        self._joins = mode == "join"
        self.units = joinable_units(model)
        self._numbers = {
            id(parameter): number for number, unit in enumerate(self.units) for parameter in unit.parameters
        }
        self._places = list(range(len(self.units)))
        """The place of each unit in the order in which they run."""
        self._learns = True
        self._forwards = 0
        self._is_in_forward = False
        self._is_ending = False
        self._is_joining = False

    # What FSDP2 does

    def begin_forward(self) -> None:
        """Count the forwards: ranks are in the same one, or stop."""
        self._forwards += 1
        self._is_in_forward = True

    def end_forward(self, ran: Sequence[JoinableUnit]) -> None:
        """Join what other ranks gather in the rest of their forwards, and learn the order of units."""
        numbers = {id(unit): number for number, unit in enumerate(self.units)}
        order = [numbers[id(unit)] for unit in ran]
        places = [self._places[number] for number in order]
        is_new = self._learns and any(one >= following for one, following in itertools.pairwise(places))
        if self._agree(_END, is_new=is_new):
            self._learn(order)
        self._is_in_forward = False

    def reduce_rest(self) -> None:
        """Reduce what is left when a backward ends, in one order on all ranks, and join the others."""
        self._is_ending = True
        try:
            for number in sorted(range(len(self.units)), key=self._places.__getitem__, reverse=True):
                self.units[number].end_backward()
            self._agree(_END)
        finally:
            self._is_ending = False

    def before(self, kind: CollectiveKind, parameters: Sequence[Any]) -> None:
        """Agree that this is what all ranks do next."""
        number = self._numbers.get(id(parameters[0])) if parameters else None
        # To join calls torch's own functions, which are watched as well.
        if number is not None and not self._is_joining:
            if not JOINS_REENTRANT and kind == "all-gather" and self.units[number].is_new_in_backward:
                msg = (
                    f"`{self.units[number].name}` is recomputed by reentrant checkpointing around it, which "
                    "`skipped_units` does not support on this torch. Give `use_reentrant=False`."
                )
                raise UnsupportedFeatureError(msg)
            self._agree(_Operation(kind, number))

    # What the ranks agree on

    def _agree(self, own: _Operation, *, is_new: bool = False) -> bool:
        """Do what other ranks do before, until all do this; return whether there is a new order anywhere."""
        while True:
            chosen, is_any_new = self._vote(own, is_new=is_new)
            if chosen == own:
                return is_any_new
            self._is_joining = True
            try:
                self._join(chosen)
            finally:
                self._is_joining = False

    def _join(self, chosen: _Operation) -> None:
        unit = self.units[chosen.unit]
        if chosen.step == "all-gather":
            unit.join_gather(in_backward=self._where == "backward")
        elif not unit.join_reduction(backward_ends=self._is_ending):
            msg = (
                f"Another rank reduces `{unit.name}`, which this rank cannot join: its own backward is in "
                "the middle of that unit, or it was told not to reduce (`no_sync`). Ranks must run units in "
                "one order, and reduce in the same backwards."
            )
            raise RanksDivergedError(msg, operations={})

    def _vote(self, own: _Operation, *, is_new: bool) -> tuple[_Operation, bool]:
        code = _STEPS.index(own.step) * len(self.units) + own.unit
        place = self._places[own.unit]
        # The maximum is done first: in forward the unit that runs first, in backward the one that ran last.
        rank = place if self._where == "backward" else _PLACES - 1 - place
        # The step weighs most, then the place in the order; the unit only tells what is meant.
        first = (_STEPS.index(own.step) * _PLACES + rank) * len(self.units) + own.unit
        # A rank that is in another forward, or in backward already, cannot be joined.
        phase = self._forwards * len(_WHERE) + _WHERE.index(self._where)
        # With the negatives the maximum is the minimum, too: one collective, not two.
        votes = self._channel.maximum([first, int(is_new), phase, -phase, code, -code])
        is_one = votes[4] == -votes[5]
        if votes[2] != -votes[3] or not (is_one or (self._joins and self._where != "between")):
            self._raise_divergence(own)
        rest, unit = divmod(votes[0], len(self.units))
        return _Operation(_STEPS[rest // _PLACES], unit), bool(votes[1])

    @property
    def _where(self) -> Where:
        if self._is_ending or not is_outside_backward():
            return "backward"
        return "forward" if self._is_in_forward else "between"

    def _raise_divergence(self, own: _Operation) -> None:
        where = {
            "forward": f"in the model's forward {self._forwards}",
            "backward": f"in the backward after its forward {self._forwards}",
            "between": f"outside of the model's forward, after forward {self._forwards}",
        }[self._where]
        unit = self.units[own.unit].name
        text = f"{own.step} of `{unit}` {where}" if own.step != "end" else f"nothing more {where}"
        operations = self._channel.exchange(text)
        msg = (
            "The ranks do not run the same units. They were about to do different things: "
            f"{ranks_by_text(operations)}. "
        )
        msg += (
            "Under skipped_units='join' ranks may skip units within the forward of the whole model, but all "
            "must run as many forwards and backwards, in one order."
            if self._joins
            else "Give prepare_fully_shard skipped_units='join', or let every rank run the same units."
        )
        raise RanksDivergedError(msg, operations=operations)

    def _learn(self, order: Sequence[int]) -> None:
        """Agree on an order that holds on all ranks; or, where there is none, go on with the first one."""
        places = self._places
        # A unit moves behind those that run before it on any rank. Where the orders make no circle this comes
        # to rest within as many rounds as there are units.
        for _ in range(len(places)):
            own = list(places)
            for before, after in itertools.pairwise(order):
                own[after] = max(own[after], own[before] + 1)
            *places, changed = self._channel.maximum([*own, int(own != places)])
            if not changed:
                self._places = places
                return
        self._places, self._learns = list(range(len(places))), False


class _Watcher:
    """Tells an agreement of the collectives of FSDP2, for as long as there is one."""

    def __init__(self, agreement: ref[Agreement]) -> None:
        self._agreement = agreement

    def before_allocating(self, kind: CollectiveKind, parameters: Sequence[Any]) -> bool:
        agreement = self._agreement()
        if agreement is not None:
            agreement.before(kind, parameters)
        return False

    def before_sending(self) -> None:
        """Nothing is left to be said."""
