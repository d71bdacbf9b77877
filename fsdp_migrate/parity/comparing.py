"""What differs between two runs of one model: tensor by tensor, put together over the ranks."""

from __future__ import annotations

import math
import platform
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from fsdp_migrate.parity.explaining import clue_of, explain
from fsdp_migrate.parity.recording import clean_name
from fsdp_migrate.parity.report import Difference, ParityReport, Step
from fsdp_migrate.parity.tensors import Gap, find_gap


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from fsdp_migrate.findings import Finding
    from fsdp_migrate.parity.recording import Recorder
    from fsdp_migrate.parity.report import Cost, Stage
    from fsdp_migrate.parity.trainees import Prepared, Tensors, UnderFSDP1
    from fsdp_migrate.sharding.units import UnitPlan


MOST_DIFFERENCES = 200
"""How many differences a report holds; the first are kept, and all are counted."""

Losses = tuple[torch.Tensor | None, torch.Tensor | None]
"""One loss, or a part of one, under FSDP1 and under FSDP2."""


class Comparison:
    """Compares two trainees at each stage of a step; :meth:`share` makes all ranks know what any found.

    Every method that compares is a collective call of all ranks.
    """

    def __init__(
        self, fsdp1: UnderFSDP1, fsdp2: Prepared, units: Sequence[UnitPlan], findings: Iterable[Finding]
    ) -> None:
        self.fsdp1, self.fsdp2 = fsdp1, fsdp2
        self.units = tuple(units)
        self.findings = tuple(findings)
        self.notes: list[str] = []
        self.found: list[Difference] = []
        self.pending: list[Difference] = []
        self.counts: dict[str, int] = {}
        self.num_rounded = 0
        self.step = 0

    def begin(self, step: int) -> None:
        """Begin a step; 0 is what stands before the first."""
        self.step, self.counts = step, {}

    def compare_structure(self) -> None:
        """Compare how the models are sharded: units, and names that are one parameter."""
        first, second = self.fsdp1.units(), self.fsdp2.units()
        grouped = {name for unit in self.units for name in unit.grouped}
        for name in sorted(first ^ second):
            words = f"a unit only under {'FSDP1' if name in first else 'FSDP2'}"
            found = self._make("units", name, name, Gap(words=words))
            if found.is_explained or name in grouped:
                self.notes.append(f"`{name}` is {words}: {found.explanation} ({found.explained_by}).")
            else:
                self.pending.append(found)
        tied = self.fsdp1.ties(), self.fsdp2.ties()
        for names in sorted(tied[0] ^ tied[1]):
            words = f"only under {'FSDP1' if names in tied[0] else 'FSDP2'} these are one parameter: "
            gap = Gap(words=words + ", ".join(names))
            self.pending.append(self._make("ties", names[-1], _module_of(names[-1]), gap))

    def compare_run(self, recorder: Recorder, losses: Mapping[str, Losses], costs: tuple[Cost, Cost]) -> None:
        """Take what ``recorder`` compared while the second of the two ran, and compare the losses."""
        for stage, count in recorder.compared.items():
            self.counts[stage] = self.counts.get(stage, 0) + count
        forward = [each for each in recorder.parted if each.stage != "recomputed"]
        for parted in forward:
            self.pending.append(self._make(parted.stage, parted.name, parted.module, parted.gap))
        for name, (one, other) in losses.items():
            self._count("loss")
            if (gap := find_gap(one, other)) is not None:
                # No ulps: the loss came as a Python float, so that those of float64 would mean nothing.
                self.pending.append(self._make("loss", name, "", replace(gap, ulps=None), costs))
        # After the loss, as in the step itself: this is computed in backward.
        for parted in recorder.parted:
            if parted.stage == "recomputed":
                self.pending.append(self._make(parted.stage, parted.name, parted.module, parted.gap))

    def compare_gradients(self, costs: tuple[Cost, Cost]) -> tuple[Tensors, Tensors]:
        """Compare the gradients, from the last parameter that was used to the first; return both."""
        found = self.fsdp1.gradients(), self.fsdp2.gradients()
        order = [*reversed(self.fsdp1.recorder.used), *found[0], *found[1]]
        names = [each for each in dict.fromkeys(order) if each in found[0] or each in found[1]]
        known = len(self.pending)
        self._compare("gradient", found[0], found[1], names, costs)
        apart = self._apart(found[1])
        for place in range(known, len(self.pending)):
            each = self.pending[place]
            if (other := apart.get(each.name)) is not None:
                words = f"ranks {each.rank} and {other} hold different whole gradients of it under FSDP2"
                clue = "; ".join(filter(None, (each.clue, words)))
                self.pending[place] = replace(each, clue=clue)
        return found

    def _apart(self, gradients: Tensors) -> dict[str, int]:
        """Return the names of whole gradients that ranks do not agree on, each with one that has another."""
        sums = {name: repr(float(each.double().sum())) for name, each in gradients.items()}
        every: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(every, sums)
        apart = {}
        for name, mine in sums.items():
            others = [rank for rank, each in enumerate(every) if each.get(name) != mine]
            if others:
                apart[name] = others[0]
        return apart

    def compare_states(self) -> None:
        """Compare what the step left: the optimizer's groups, parameters, its state, buffers."""
        # One kind after the other: each is of the size of both models.
        params = self.fsdp1.parameters(), self.fsdp2.parameters()
        self._compare("parameter", *params, [each for each in params[0] if each in params[1]])
        del params
        states = self.fsdp1.optimizer_state(), self.fsdp2.optimizer_state()
        groups = [groups_of(each) for each in states]
        for name in sorted(groups[0].keys() | groups[1].keys()):
            self._count("optimizer group")
            if (gap := group_gap(groups[0].get(name), groups[1].get(name))) is not None:
                self.pending.append(self._make("optimizer group", name, _module_of(name), gap))
        values = [_state_tensors(each) for each in states]
        self._compare("optimizer state", values[0], values[1], sorted(values[0].keys() | values[1].keys()))
        buffers = self.fsdp1.buffers(), self.fsdp2.buffers()
        self._compare("buffer", *buffers, list(dict.fromkeys([*buffers[0], *buffers[1]])))

    def _compare(
        self,
        stage: Stage,
        first: Mapping[str, torch.Tensor],
        second: Mapping[str, torch.Tensor],
        names: Iterable[str],
        costs: tuple[Cost, Cost] | None = None,
    ) -> None:
        for name in names:
            self._count(stage)
            one, other = first.get(name), second.get(name)
            gap = find_gap(one, other)
            if gap is not None and not self.tolerates(stage, name, one, other):
                self.pending.append(self._make(stage, name, _module_of(name), gap, costs))

    def tolerates(
        self, stage: Stage, name: str, one: torch.Tensor | None, other: torch.Tensor | None
    ) -> bool:
        """Tell whether two tensors that differ are as alike as they can be; bit for bit unless overridden."""
        del stage, name, one, other
        return False

    def _count(self, stage: Stage) -> None:
        self.counts[stage] = self.counts.get(stage, 0) + 1

    def _make(
        self, stage: Stage, name: str, module: str, gap: Gap, costs: tuple[Cost, Cost] | None = None
    ) -> Difference:
        clue = clue_of(stage, gap, costs, dist.get_world_size())
        made = Difference(
            step=self.step, stage=stage, name=name, module=module, rank=dist.get_rank(), gap=gap, clue=clue
        )
        return explain(made, self.findings)

    def share(self) -> dict[str, int]:
        """Put together what the ranks found in a step; return how much differs, by stage."""
        every: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(every, self.pending)
        self.pending.clear()
        merged = merge(every)
        self.found.extend(merged)
        counts: dict[str, int] = {}
        for each in merged:
            counts[each.stage] = counts.get(each.stage, 0) + 1
        return counts

    def end(self, losses: tuple[float, float], costs: tuple[Cost, Cost], device: torch.device) -> Step:
        """End a step: share what was found; ``losses`` are this rank's."""
        different = self.share()
        means = torch.tensor(losses, dtype=torch.float64, device=device)
        dist.all_reduce(means)
        fsdp1_loss, fsdp2_loss = (means / dist.get_world_size()).tolist()
        return Step(
            number=self.step,
            fsdp1_loss=fsdp1_loss,
            fsdp2_loss=fsdp2_loss,
            compared=dict(self.counts),
            different=different,
            fsdp1=costs[0],
            fsdp2=costs[1],
        )

    def report(self, steps: Iterable[Step], device: torch.device) -> ParityReport:
        """Return what was found."""
        done = tuple(steps)
        self.notes.extend(_not_finite(done))
        return ParityReport(
            world_size=dist.get_world_size(),
            device=device.type,
            torch_version=torch.__version__,
            steps=done,
            differences=tuple(self.found[:MOST_DIFFERENCES]),
            num_differences=len(self.found),
            findings=self.findings,
            notes=tuple(dict.fromkeys(self.notes)),
            num_parameters=sum(unit.numel for unit in self.units),
            units=tuple(unit.fqn for unit in self.units),
            unit_summaries=tuple(unit.summary for unit in self.units),
            versions={"python": platform.python_version(), "torch": torch.__version__},
            num_rounded=self.num_rounded,
        )


def _not_finite(steps: Iterable[Step]) -> Iterator[str]:
    """Say where the loss is no number: what is NaN on both sides is equal, and proves nothing."""
    for step in steps:
        if not (math.isfinite(step.fsdp1_loss) and math.isfinite(step.fsdp2_loss)):
            yield (
                f"The loss is {step.fsdp1_loss} under FSDP1 and {step.fsdp2_loss} prepared in step "
                f"{step.number}: what is compared from there on says little."
            )
            return


_ORDER: tuple[tuple[Stage, ...], ...] = (
    ("units",),
    ("ties",),
    ("used in forward", "output", "order of modules"),
    ("loss",),
    ("recomputed",),
    ("gradient",),
    ("optimizer group",),
    ("parameter",),
    ("optimizer state",),
    ("buffer",),
)
_PLACES = {stage: place for place, stages in enumerate(_ORDER) for stage in stages}


def merge(every: Iterable[Iterable[Difference]]) -> list[Difference]:
    """Return what ranks found in one step, each thing once, in the order in which a step comes to it."""
    placed = [(number, each) for found in every for number, each in enumerate(found)]
    placed.sort(key=lambda each: (_PLACES[each[1].stage], each[0], each[1].rank))
    # A dict keeps the last of equal keys, and the first difference counts: so it is filled from behind.
    return list({(each.stage, each.name): each for _, each in reversed(placed)}.values())[::-1]


def _module_of(name: str) -> str:
    return name.rpartition(".")[0]


def groups_of(state: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the settings of each parameter that an optimizer has."""
    return {
        clean_name(name): {key: value for key, value in group.items() if key != "params"}
        for group in state["param_groups"]
        for name in group["params"]
    }


_NO_SETTINGS = frozenset({"foreach", "fused", "initial_lr"})


def group_gap(first: Mapping[str, Any] | None, second: Mapping[str, Any] | None) -> Gap | None:
    """Compare the settings of one parameter in two optimizers; how a kernel loops is none."""
    if first is None or second is None:
        return Gap(words=f"in the optimizer only under {'FSDP2' if first is None else 'FSDP1'}")
    for key in sorted((first.keys() & second.keys()) - _NO_SETTINGS):
        one, other = first[key], second[key]
        same = torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
        if not same:
            return Gap(words=f"`{key}` is {one!r} under FSDP1, {other!r} under FSDP2")
    return None


def _state_tensors(state: Mapping[str, Any]) -> Tensors:
    return {
        f"{clean_name(name)}.{key}": value.detach()
        for name, values in state["state"].items()
        for key, value in values.items()
        if isinstance(value, torch.Tensor)
    }
