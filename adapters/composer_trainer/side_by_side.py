"""Runs a twin under FSDP1 beside a Trainer's model, and compares the two after each part of a batch."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from fsdp_migrate.adapters.composer_trainer.replaying import Listener, Microbatch, replay
from fsdp_migrate.adapters.composer_trainer.sharding import holds_parameters
from fsdp_migrate.adapters.config_objects.composer_marks import composer_children
from fsdp_migrate.errors import UnsupportedFeatureError
from fsdp_migrate.parity.comparing import Comparison
from fsdp_migrate.sharding.consensus import any_rank_says, exchange
from fsdp_migrate.sharding.prepare import shard_plan
from fsdp_migrate.torch_compat import module_kinds
from fsdp_migrate.torch_compat.traffic import Traffic, count_traffic


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import nn

    from fsdp_migrate.adapters.composer_trainer.twins import TrainersWays, Twin
    from fsdp_migrate.findings import Finding
    from fsdp_migrate.parity.report import Cost, ParityReport, Stage, Step
    from fsdp_migrate.parity.trainees import Prepared, Tensors
    from fsdp_migrate.sharding.units import UnitPlan


_EVERY_RANK = [None]
_ROUNDINGS = 4
"""How many roundings of the largest number, for each rank, sums in another order may be apart."""
_NOISE = 8
"""How many times what FSDP1 differs from itself gradients may be apart."""


def cannot_compare(why: str) -> UnsupportedFeatureError:
    """Return the error by which a comparison ends, and the run goes on."""
    return UnsupportedFeatureError(why, feature="verify_steps")


class TwinComparison(Comparison):
    """A comparison in which gradients may differ by the order of sums, where they cannot but.

    ``sums_differ`` tells that they are sums of more than two numbers: of more than two ranks, or of several
    microbatches that are added up in another order.
    """

    sums_differ = False
    rounding: float | None = None
    """The largest rounding error of the type that gradients are reduced in; None: the two have others."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.noise: dict[str, float] = {}
        self.rounded: set[str] = set()
        """The gradients of this step that differ so."""

    def begin(self, step: int) -> None:
        """Begin a step."""
        super().begin(step)
        self.noise, self.rounded = {}, set()

    def tolerates(
        self, stage: Stage, name: str, one: torch.Tensor | None, other: torch.Tensor | None
    ) -> bool:
        """Take gradients for the same that differ by no more than the order of sums can make them differ."""
        if stage != "gradient" or one is None or other is None or self.rounding is None:
            return False
        if one.shape != other.shape or one.dtype != other.dtype or not self.sums_differ:
            return False
        apart = float((one.double() - other.double()).abs().max())
        slack = _ROUNDINGS * dist.get_world_size() * self.rounding * float(one.abs().max())
        return self._is_rounded(name, apart, slack)

    def _is_rounded(self, name: str, apart: float, slack: float) -> bool:
        is_so = apart <= slack  # NaN is not
        if is_so:
            self.rounded.add(name)
        return is_so

    def count_rounded(self) -> None:
        """Count what any rank found so, and say why it may be; a collective call."""
        every = exchange((dist.get_rank(), self.rounded, bool(self.noise)), _EVERY_RANK)
        names = set().union(*(names for _, names, _ in every))
        if names:
            self.num_rounded += len(names)
            noisy = any(is_noisy for *_, is_noisy in every)
            why = "those of FSDP1 do when it computes them again" if noisy else "the order of sums makes them"
            self.notes.append(f"Gradients differ no more than {why}; the twin goes on with the run's.")

    def forgive_noise(self) -> None:
        """Take back what differs by no more than FSDP1 differs from itself."""
        self.pending = [
            each
            for each in self.pending
            if each.stage != "gradient"
            or each.name not in self.noise
            or each.gap.largest is None
            or not self._is_rounded(each.name, each.gap.largest, _NOISE * self.noise[each.name])
        ]


class SideBySide:
    """A Trainer's model and its twin in the batches that are compared.

    Making it, and each method but :meth:`microbatch`, is a collective call of all ranks.
    """

    def __init__(
        self,
        state: Any,
        prepared: Prepared,
        twin: Twin,
        ways: TrainersWays,
        *,
        findings: Sequence[Finding],
        mesh: Any,
    ) -> None:
        if "forward" in vars(state.model) or any(map(module_kinds.is_compiled, state.model.modules())):
            why = "the model is compiled, and compiled code has other last bits"
            raise cannot_compare(why)
        self.prepared, self.twin = prepared, twin
        self.done: list[Step] = []
        self.is_replayed = False
        self._precision = partial(ways.precision, state)
        self._parts: list[Microbatch] = []
        self._seconds = [0.0, 0.0]
        self._losses = (0.0, 0.0)
        self._gradients: Tensors = {}
        self.fsdp1 = twin.wake(prepared, state, mesh, ways)
        self.comparison = TwinComparison(self.fsdp1, prepared, list(_units_of(state.model)), findings)
        self.comparison.compare_structure()
        self.comparison.share()
        self.listener = Listener(state.model, prepared.recorder, prepared.device.type)

    def leave(self) -> None:
        """Take what listens off the model."""
        self.listener.leave()

    def begin(self) -> None:
        """Begin a batch."""
        self.comparison.begin(len(self.done) + 1)
        self._parts, self._seconds, self.prepared.traffic = [], [0.0, 0.0], Traffic()
        self.twin.look_like(self.prepared.model)  # others may have run it between batches

    @contextmanager
    def microbatch(self) -> Iterator[None]:
        """Surround a microbatch of the Trainer's."""
        recorder, part = self.prepared.recorder, Microbatch()
        if self._parts:
            recorder.go_on()
        else:
            recorder.start(None)
        self._parts.append(part)
        began = time.perf_counter()
        try:
            with self.listener.listen(part), count_traffic(self.prepared.traffic):
                yield
        finally:
            recorder.pause()
        self._seconds[1] += time.perf_counter() - began

    def replay(self) -> None:
        """Ask the twin the same, and compare what modules computed, losses and gradients."""
        self._check_parts()
        mine, other = self.prepared.recorder, self.fsdp1.recorder
        self.fsdp1.optimizer.zero_grad(set_to_none=True)
        other.start(mine.events, runs="FSDP1")
        self.fsdp1.traffic = Traffic()
        began = time.perf_counter()
        with count_traffic(self.fsdp1.traffic):
            found = self._replay_all()
        other.stop()
        mine.events = []
        self._seconds[0] += time.perf_counter() - began
        losses = {
            name if len(self._parts) == 1 else f"{name} of microbatch {number + 1}": (own.get(name), one)
            for number, (part, own) in enumerate(zip(self._parts, found, strict=True))
            for name, one in part.loss_tensors().items()
        }
        self._losses = _totals(self._parts, found)
        costs = self._costs()
        self.comparison.compare_run(other, losses, costs)
        self.comparison.rounding = _rounding_of(costs)
        own, self._gradients = self.comparison.compare_gradients(costs)
        # The costly answer last: FSDP1 computes its gradients twice more where nothing else explains them;
        # on all ranks or on none, because that communicates.
        unexplained = any(
            each.stage == "gradient" and not each.is_explained for each in self.comparison.pending
        )
        if any_rank_says(unexplained, _EVERY_RANK):
            self.comparison.noise = self._noise(own)
            self.comparison.forgive_noise()
        self.comparison.count_rounded()
        self.is_replayed = True

    def _check_parts(self) -> None:
        said = exchange((dist.get_rank(), self.listener.problem, len(self._parts)), _EVERY_RANK)
        for rank, problem, _ in said:
            if problem:
                raise cannot_compare(f"{problem} (rank {rank})")
        if len({count for *_, count in said}) > 1:
            why = "the ranks have uneven numbers of microbatches, which FSDP1 does not survive"
            raise cannot_compare(why)

    def _replay_all(self) -> list[Tensors]:
        found = []
        for number, part in enumerate(self._parts):
            if number:
                self.fsdp1.recorder.go_on()
            found.append(replay(part, self.fsdp1.model, self.fsdp1.recorder, self._precision))
        return found

    def _noise(self, own: Tensors) -> dict[str, float]:
        """Return by how much FSDP1's gradients differ where it computes the same once more, and again.

        Its ``own`` ones are put back.
        """
        buffers = [(buffer, buffer.clone()) for buffer in self.fsdp1.model.buffers()]
        found: list[Tensors] = []
        for _ in range(2):
            self.fsdp1.model.zero_grad(set_to_none=True)
            self._replay_all()
            found.append(self.fsdp1.gradients())
            for buffer, value in buffers:  # running statistics moved along
                buffer.data.copy_(value)
        self.fsdp1.take_gradients(own)
        gaps = {
            name: float((each.double() - found[1][name].double()).abs().max())
            for name, each in found[0].items()
            if name in found[1]
        }
        return {name: gap for name, gap in gaps.items() if gap > 0}

    def end_batch(self, settings: Sequence[dict[str, Any]]) -> None:
        """Step the twin, with the gradients that the run steps with: algorithms may have changed them."""
        gradients = self.prepared.gradients()
        changed = any(
            name not in self._gradients or not torch.equal(each, self._gradients[name])
            for name, each in gradients.items()
        )
        if any_rank_says(changed, _EVERY_RANK):
            text = (
                "What became of gradients between backward and the step, as clipping, was taken from the run "
                "and not compared."
            )
            self.comparison.notes.append(text)
        # From here on both go on from the same gradients, so that a rounding that was allowed once does not
        # hide differences in every step that follows.
        if any_rank_says(changed or bool(self.comparison.rounded), _EVERY_RANK):
            self.fsdp1.take_gradients(gradients)
        self._gradients = {}
        self._follow(settings)
        self._seconds[0] += self.fsdp1.step()

    def end_step(self, settings: Sequence[dict[str, Any]]) -> None:
        """Compare what the step left."""
        self._follow(settings)
        costs = self._costs()
        self.comparison.compare_states()
        self.done.append(self.comparison.end(self._losses, costs, self.prepared.device))
        self.is_replayed = False

    def _follow(self, settings: Sequence[dict[str, Any]]) -> None:
        """Give the twin's groups what schedulers and checkpoints have changed in the run's since it began."""
        groups = self.fsdp1.optimizer.param_groups, self.prepared.optimizer.param_groups
        if not len(groups[0]) == len(groups[1]) == len(settings):
            return  # the comparison names whose settings differ
        for own, group, first in zip(*groups, settings, strict=True):
            for key, value in settings_of(group).items():
                if key not in first or not _is_same(first[key], value):
                    own[key] = value

    def _costs(self) -> tuple[Cost, Cost]:
        return self.fsdp1.cost(self._seconds[0], None), self.prepared.cost(self._seconds[1], None)

    def report(self) -> ParityReport:
        """Return what was found so far."""
        return self.comparison.report(self.done, self.prepared.device)


def settings_of(group: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a parameter group's settings."""
    return {
        key: value.detach().clone() if isinstance(value, torch.Tensor) else value
        for key, value in group.items()
        if key != "params"
    }


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one, other)
    return bool(one == other)


def _units_of(model: nn.Module) -> Iterator[UnitPlan]:
    """Yield the units of all children, by their names in the whole model."""
    for name, child in composer_children(model).sharded.items():
        if holds_parameters(child):
            for unit in shard_plan(child).units:
                grouped = tuple(f"{name}.{each}" for each in unit.grouped)
                yield replace(unit, fqn=f"{name}.{unit.fqn}".rstrip("."), grouped=grouped)


def _totals(parts: Sequence[Microbatch], found: Sequence[Tensors]) -> tuple[float, float]:
    """Return the loss of a batch under both, as the Trainer weighs it."""
    return sum(part.total(own) for part, own in zip(parts, found, strict=True)), sum(
        part.total(part.loss_tensors()) for part in parts
    )


def _rounding_of(costs: tuple[Cost, Cost]) -> float | None:
    """Return the rounding error of what gradients are reduced in; None where the two have other types."""
    dtypes = [
        {each.dtype for each in cost.collectives if each.kind in {"reduce-scatter", "all-reduce"}}
        for cost in costs
    ]
    floating = [getattr(torch, each) for each in dtypes[0] if getattr(torch, each).is_floating_point]
    return max(torch.finfo(each).eps for each in floating) if floating and dtypes[0] == dtypes[1] else None
