"""``compare_runs``: FSDP1 and ``prepare_fully_shard`` train the same model side by side, step by step."""

from __future__ import annotations

import math
import platform
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from fsdp_migrate.arguments import (
    CALLABLE,
    FLAG,
    NOTHING,
    PATH,
    TEXT,
    check_arguments,
    whole_number_from,
)
from fsdp_migrate.errors import ConfigError, FSDPMigrateError, ModelError, ProcessGroupError
from fsdp_migrate.factories import describe_error
from fsdp_migrate.parity.batches import Fed, feed, move
from fsdp_migrate.parity.explaining import clue_of, explain
from fsdp_migrate.parity.making import ComparisonRequest, Pair, agreed, make_pair
from fsdp_migrate.parity.recording import clean_name
from fsdp_migrate.parity.report import Cost, Difference, ParityReport, Step
from fsdp_migrate.parity.tensors import Gap, find_gap
from fsdp_migrate.parity.trainees import Tensors, is_alone, quiet_fsdp1
from fsdp_migrate.sharding.prepare import prepare_fully_shard
from fsdp_migrate.torch_compat import devices


if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from torch import nn
    from torch.optim import Optimizer

    from fsdp_migrate.parity.report import Stage
    from fsdp_migrate.parity.trainees import Trainee


MOST_DIFFERENCES = 200
"""How many differences a report holds; the first are kept, and all are counted."""
_MOST_STEPS, _MOST_SEED = 10**9, 2**32


def compare_runs(
    model: Callable[[], Any],
    fsdp1_config: Any = None,
    *,
    batches: Any = None,
    loss: Callable[[nn.Module, Any], Any] | None = None,
    optimizer: Callable[[nn.Module], Optimizer] | None = None,
    steps: int = 4,
    checkpoint: str | os.PathLike[str] | None = None,
    weights_only: bool = False,
    seed: int = 0,
    device: str | None = None,
    prepare: Callable[..., Any] = prepare_fully_shard,
    on_step: Callable[[Step], None] | None = None,
) -> ParityReport:
    """Train a model for some steps under real FSDP1 and prepared, and compare all that comes of it.

    Both have the same FSDP1 arguments, weights, batches and seeds, and take turns, a step each. Compared are
    units and ties; and in every step, in this order: the parameters and buffers that each module computes
    with, its output, the loss, what is computed again in backward, gradients from the last module to the
    first, the optimizer's groups, parameters, its state, and buffers. All ranks must call it; both models are
    in memory at once.

    Changes: the seeds of torch's, Python's and numpy's random numbers.

    Args:
        model: A function without arguments that returns the model, or the model and an optimizer of its
            parameters, which is made again for each sharded model. Called three times at most.
        fsdp1_config: What :func:`~fsdp_migrate.prepare_fully_shard` takes; or a function of the model that
            returns it, where it holds modules or parameters of the model.
        batches: Batches that can be iterated over, of which each rank takes its own; or a function that
            returns such, with or without the parameters ``rank`` and ``world_size``. A batch is given to the
            model as keyword arguments (a mapping), positional ones (a sequence) or one. None: made from the
            model's signature, and said so.
        loss: A function of the model and a batch, which calls the model and returns the loss. None: the loss
            that the model returns, or the mean square of its first output.
        optimizer: A function of the sharded model that returns its optimizer. None: the one of ``model``, or
            AdamW.
        steps: How many steps to train.
        checkpoint: Any checkpoint that :func:`~fsdp_migrate.load_checkpoint` reads: both runs go on from it.
        weights_only: Load no optimizer state from it.
        seed: Where random numbers begin, in both.
        device: ``"cpu"`` or ``"cuda"``. None: the accelerator that the process group can use, or the CPU.
        prepare: A function of the model and the config in place of ``prepare_fully_shard``, such as one that
            calls it with more options.
        on_step: Is told each step when it is done.

    Returns:
        What was compared and what differs. The same on all ranks, but for costs, which are each rank's own.

    Raises:
        ConfigError: Something that was given means nothing, or no batches can be made for the model.
        ProcessGroupError: No process group is initialised.
        FindingsError: The config cannot be migrated.

    Example:
        >>> import torch.distributed as dist
        >>> from torch import nn
        >>> from fsdp_migrate.runtime import end_process_group
        >>> store = dist.HashStore()
        >>> dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        >>> report = compare_runs(lambda: nn.Linear(4, 2), {"use_orig_params": True}, steps=2, device="cpu")
        >>> report.identical, len(report.steps)
        (True, 2)
        >>> end_process_group()
    """
    if is_alone():
        msg = (
            "There is no process group. Start with torchrun and call `init_process_group()` before "
            "compare_runs; or run `fsdp-migrate parity`, which starts ranks by itself."
        )
        raise ProcessGroupError(msg)

    def check() -> None:
        check_arguments(CALLABLE, model=model, prepare=prepare)
        check_arguments(CALLABLE | NOTHING, loss=loss, optimizer=optimizer, on_step=on_step)
        check_arguments(whole_number_from(1, _MOST_STEPS), steps=steps)
        check_arguments(whole_number_from(-_MOST_SEED, _MOST_SEED), seed=seed)
        check_arguments(PATH | NOTHING, checkpoint=checkpoint)
        check_arguments(FLAG, weights_only=weights_only)
        check_arguments(TEXT | NOTHING, device=device)

    agreed(check)
    request = ComparisonRequest(
        model=model,
        config=fsdp1_config,
        optimizer=optimizer,
        checkpoint=checkpoint,
        weights_only=weights_only,
        seed=seed,
        device=agreed(lambda: _device(device)),
        prepare=prepare,
    )
    own = {"rank": dist.get_rank(), "world_size": dist.get_world_size()}
    fed = agreed(lambda: feed(lambda: request.make_model()[0], batches, loss, steps=steps, **own))
    return _Comparison(request, make_pair(request), fed).run(on_step or (lambda _: None))


def _device(word: str | None) -> torch.device:
    kind = word or devices.accelerator_type() or "cpu"
    if kind != "cpu" and word is None and dist.get_backend() == "gloo":
        kind = "cpu"
    if kind == "cpu":
        return torch.device("cpu")
    if kind not in {"cpu", devices.accelerator_type()}:
        known = " or ".join(repr(each) for each in ("cpu", devices.accelerator_type()) if each)
        msg = f"`device` is {kind!r:.100}; expected {known}, as this machine has."
        raise ConfigError(msg, field="device")
    index = dist.get_rank() % max(devices.device_count(kind), 1)
    torch.get_device_module(kind).set_device(index)
    return torch.device(kind, index)


class _Comparison:
    """One comparison of two runs."""

    def __init__(self, request: ComparisonRequest, pair: Pair, fed: Fed) -> None:
        self.request, self.fed, self.notes = request, fed, [*pair.notes, *fed.notes]
        self.fsdp1, self.fsdp2 = pair.fsdp1, pair.fsdp2
        self.findings = pair.fsdp2.plan.findings
        self.found: list[Difference] = []
        self.pending: list[Difference] = []
        self.counts: dict[str, int] = {}
        self.step = 0

    def run(self, on_step: Callable[[Step], None]) -> ParityReport:
        """Compare how the models are sharded, then step by step, and report."""
        with quiet_fsdp1():
            self._compare_structure()
            self._share()
            steps = []
            for number, batch in enumerate(self.fed.batches, 1):
                self.step, self.counts = number, {}
                steps.append(self._do_step(batch))
                on_step(steps[-1])
        self.notes.extend(_not_finite(steps))
        return ParityReport(
            world_size=dist.get_world_size(),
            device=self.request.device.type,
            torch_version=torch.__version__,
            steps=tuple(steps),
            differences=tuple(self.found[:MOST_DIFFERENCES]),
            num_differences=len(self.found),
            findings=tuple(self.findings),
            notes=tuple(dict.fromkeys(self.notes)),
            num_parameters=sum(unit.numel for unit in self.fsdp2.plan.units),
            units=tuple(unit.fqn for unit in self.fsdp2.plan.units),
            unit_summaries=tuple(unit.summary for unit in self.fsdp2.plan.units),
            versions={"python": platform.python_version(), "torch": torch.__version__},
        )

    # How the models are sharded

    def _compare_structure(self) -> None:
        first, second = self.fsdp1.units(), self.fsdp2.units()
        grouped = {name for unit in self.fsdp2.plan.units for name in unit.grouped}
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

    # One step

    def _do_step(self, batch: Any) -> Step:
        seed = (self.request.seed * 7919 + self.step) * 1009 + dist.get_rank()
        losses, seconds, peaks = [], [], []
        expected = None
        both: tuple[Trainee, ...] = (self.fsdp1, self.fsdp2)
        for each in both:
            each.recorder.start(expected)
            before = _reset_peak(self.request.device)
            with self._telling_whose(each):
                loss, took = each.train(move(batch, self.request.device), self.fed.loss, seed)
            each.recorder.stop()
            expected = each.recorder.events
            losses.append(loss)
            seconds.append(took)
            peaks.append(_peak(self.request.device, before))
        self.fsdp1.recorder.events = []
        costs = self._costs(seconds, peaks)
        self._compare_run(losses, costs)
        self._compare_gradients(costs)
        for number, each in enumerate(both):
            with self._telling_whose(each):
                seconds[number] += each.step()
        costs = self._costs(seconds, peaks)
        self._compare_states()
        for each in both:
            each.optimizer.zero_grad()
        different = self._share()
        means = torch.tensor(losses, dtype=torch.float64, device=self.request.device)
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

    @contextmanager
    def _telling_whose(self, trainee: Trainee) -> Iterator[None]:
        """Say under which of the two the user's own code, or torch, failed."""
        try:
            yield
        except FSDPMigrateError:
            raise
        except Exception as error:
            who = "FSDP1 itself" if trainee is self.fsdp1 else "The prepared model"
            msg = (
                f"{who} failed in step {self.step}, on rank {dist.get_rank()}: {describe_error(error)}. "
                "Its traceback is above, or in `__cause__`."
            )
            raise ModelError(msg) from error

    def _costs(self, seconds: list[float], peaks: list[int | None]) -> tuple[Cost, Cost]:
        return (
            self.fsdp1.cost(seconds[0], peaks[0]),
            self.fsdp2.cost(seconds[1], peaks[1]),
        )

    def _compare_run(self, losses: list[float], costs: tuple[Cost, Cost]) -> None:
        """Take what was compared while the second ran, and compare the losses."""
        recorder = self.fsdp2.recorder
        for stage, count in recorder.compared.items():
            self.counts[stage] = self.counts.get(stage, 0) + count
        forward = [each for each in recorder.parted if each.stage != "recomputed"]
        for parted in forward:
            self.pending.append(self._make(parted.stage, parted.name, parted.module, parted.gap))
        one, other = (torch.tensor(each, dtype=torch.float64) for each in losses)
        self._count("loss")
        if (gap := find_gap(one, other)) is not None:
            self.pending.append(self._make("loss", "loss", "", replace(gap, ulps=None), costs))
        for parted in recorder.parted:
            if parted.stage == "recomputed":
                self.pending.append(self._make(parted.stage, parted.name, parted.module, parted.gap))

    def _compare_gradients(self, costs: tuple[Cost, Cost]) -> None:
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

    def _compare_states(self) -> None:
        states = self.fsdp1.optimizer_state(), self.fsdp2.optimizer_state()
        groups = [_groups(each) for each in states]
        for name in sorted(groups[0].keys() | groups[1].keys()):
            self._count("optimizer group")
            if (gap := _group_gap(groups[0].get(name), groups[1].get(name))) is not None:
                self.pending.append(self._make("optimizer group", name, _module_of(name), gap))
        params = self.fsdp1.parameters(), self.fsdp2.parameters()
        self._compare("parameter", *params, [each for each in params[0] if each in params[1]])
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
            if (gap := find_gap(one, other)) is not None:
                self.pending.append(self._make(stage, name, _module_of(name), gap, costs))

    # Differences

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

    def _share(self) -> dict[str, int]:
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
    return list({(each.stage, each.name): each for _, each in reversed(placed)}.values())[::-1]


def _module_of(name: str) -> str:
    return name.rpartition(".")[0]


def _groups(state: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the settings of each parameter that an optimizer has."""
    return {
        clean_name(name): {key: value for key, value in group.items() if key != "params"}
        for group in state["param_groups"]
        for name in group["params"]
    }


_NO_SETTINGS = frozenset({"foreach", "fused", "initial_lr"})


def _group_gap(first: Mapping[str, Any] | None, second: Mapping[str, Any] | None) -> Gap | None:
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


def _reset_peak(device: torch.device) -> int:
    """Begin to measure an accelerator's peak; return what is allocated."""
    if device.type == "cpu":
        return 0
    module: Any = torch.get_device_module(device.type)
    module.reset_peak_memory_stats()
    return int(module.memory_allocated())


def _peak(device: torch.device, before: int) -> int | None:
    if device.type == "cpu":
        return None
    module: Any = torch.get_device_module(device.type)
    return int(module.max_memory_allocated()) - before
