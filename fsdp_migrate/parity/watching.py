"""In each rank of a script that trains: what its optimizers step, whole and by names.

A run keeps in a folder what it had at each step. Another is compared with that as it goes, so that neither
has more than one model in memory.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from fsdp_migrate.parity.comparing import group_gap
from fsdp_migrate.parity.enlarging import is_enlarged, round_otherwise
from fsdp_migrate.parity.explaining import clue_of
from fsdp_migrate.parity.report import Difference
from fsdp_migrate.parity.script_report import is_rounding
from fsdp_migrate.parity.stepped import Stepped, are_sharded, models_of, plain_value, unwrapped
from fsdp_migrate.parity.tensors import Gap, find_gap
from fsdp_migrate.parity.trainees import is_alone, quiet_fsdp1


if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.optim import Optimizer

    from fsdp_migrate.parity.report import Stage
    from fsdp_migrate.parity.trainees import Tensors


KEPT, WITH, FOUND = "FSDP_MIGRATE_KEPT", "FSDP_MIGRATE_WITH", "FSDP_MIGRATE_FOUND"
"""Environment variables: the folder where this run keeps its steps, those of the runs to compare with, and
for each of these that of what is found. Each may be missing."""

ROUNDED = "FSDP_MIGRATE_ROUNDED"
"""Environment variable: where it is set, gradients are rounded otherwise before they are stepped by."""

STEPS = "FSDP_MIGRATE_STEPS"
"""Environment variable: how many steps of each model are seen."""


@dataclass
class Seen:
    """What one step shows. ``start`` has the parameters before the first step of a model.

    ``is_fsdp1`` tells whether torch's FSDP1 wraps a model or a part of it, ``is_others`` whether FSDP2 shards
    one and ``prepare_fully_shard`` had no part in it. ``models`` are numbers, in the order in which models
    were seen first. ``has_state`` tells whether the optimizer has a state before the step, on any rank.
    """

    number: int
    optimizer: int
    models: list[int]
    kind: str
    groups: dict[str, dict[str, Any]]
    is_fsdp1: bool
    is_others: bool
    tensors: dict[Stage, Tensors]
    start: Tensors = field(default_factory=dict)
    has_state: bool = False


@dataclass
class Watch:
    """What is watched in this process, in the order in which it was seen first; models without wrappers."""

    models: list[nn.Module] = field(default_factory=list)
    optimizers: list[Optimizer] = field(default_factory=list)
    steps: int = 0
    depth: int = 0
    found: dict[tuple[int, frozenset[tuple[int, torch.Size]]], list[nn.Module]] = field(default_factory=dict)
    counts: dict[tuple[int, ...], int] = field(default_factory=dict)
    open: tuple[Seen, Stepped] | None = None


@cache
def _watch() -> Watch:
    return Watch()


Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""What an optimizer's step is given: itself and, by place or by name, a closure."""


def before_step(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
    """See the gradients and the optimizer's groups; a collective call of all ranks.

    A closure makes the gradients inside the step, so they are seen once it has run: then the arguments to
    step with are returned, with a closure around it.
    """
    watch = _watch()
    watch.depth += 1
    # An optimizer's step may call another's: that of its base class, or that of one that it wraps.
    if watch.depth > 1 or _changes_nothing(optimizer):
        return None
    closure = args[1] if len(args) > 1 else kwargs.get("closure")
    if closure is None:
        _see_gradients(watch, optimizer)
        return None

    def seen_closure() -> Any:
        found = closure()
        if watch.open is None:  # some optimizers call it several times in a step
            _see_gradients(watch, optimizer)
        return found

    if len(args) > 1:
        return (args[0], seen_closure, *args[2:]), kwargs
    return args, {**kwargs, "closure": seen_closure}


def _changes_nothing(optimizer: Optimizer) -> bool:
    """Tell whether nothing is learned: so torch steps where it makes a state, to load or save it."""
    return all(plain_value(group.get("lr")) == 0 for group in optimizer.param_groups)


def _see_gradients(watch: Watch, optimizer: Optimizer) -> None:
    with quiet_fsdp1():
        models = _models_of(optimizer, watch)
        plain = [unwrapped(each) for each in models]
        new = [each for each in plain if each not in watch.models]
        watch.models += new
        if optimizer not in watch.optimizers:
            watch.optimizers.append(optimizer)
        numbers = [watch.models.index(each) for each in plain]
        # By model: a script may train a plain one first, and step an optimizer of each parameter.
        counted = are_sharded(models), *(numbers or (-1, watch.optimizers.index(optimizer)))
        if watch.counts.get(counted, 0) >= int(os.environ.get(STEPS, "0")):
            return
        watch.counts[counted] = watch.counts.get(counted, 0) + 1
        watch.steps += 1
        stepped = Stepped(optimizer, models)
        seen = Seen(
            number=watch.steps,
            optimizer=watch.optimizers.index(optimizer),
            models=numbers,
            kind=type(optimizer).__name__,
            is_fsdp1=stepped.is_fsdp1,
            is_others=stepped.is_others,
            groups=stepped.groups(),
            tensors={"gradient": stepped.gradients()},
            start=stepped.parameters() if new else {},
            has_state=stepped.has_state(),
        )
        watch.open = seen, stepped
        if ROUNDED in os.environ:
            round_otherwise(optimizer, watch.steps)


def _models_of(optimizer: Optimizer, watch: Watch) -> list[nn.Module]:
    """Return the models of an optimizer, looked for again where it has other parameters."""
    # FSDP1 may wrap a model later and leave it its parameters, as shards.
    params = frozenset((id(each), each.shape) for group in optimizer.param_groups for each in group["params"])
    if (id(optimizer), params) not in watch.found:
        watch.found[id(optimizer), params] = models_of(optimizer)
    return watch.found[id(optimizer), params]


def after_step(optimizer: Optimizer) -> None:
    """See the parameters and buffers, and keep or compare the step; a collective call of all ranks."""
    del optimizer
    watch = _watch()
    watch.depth -= 1
    if watch.depth or watch.open is None:
        return
    (seen, stepped), watch.open = watch.open, None
    with quiet_fsdp1():
        seen.tensors["parameter"] = stepped.parameters()
        seen.tensors["buffer"] = stepped.buffers()
    if is_alone() or dist.get_rank() == 0:
        _keep_or_compare(seen)


def _keep_or_compare(seen: Seen) -> None:
    name = f"step-{seen.number}.pt"
    if (kept := os.environ.get(KEPT)) is not None:
        torch.save(asdict(seen), Path(kept) / name)
    others, found = (os.environ.get(each, "").split(os.pathsep) for each in (WITH, FOUND))
    for other, folder in zip(others, found, strict=True):
        if other:
            _compare(seen, Path(other) / name, Path(folder))


def _compare(seen: Seen, path: Path, found: Path) -> None:
    before = Seen(**torch.load(path, weights_only=True)) if path.exists() else None
    differences = [] if before is None else list(_differences(before, seen))
    compared = sum(len(each) for each in seen.tensors.values()) + len(seen.start)
    document = {
        "is_in_both": before is not None,
        "are_fsdp1": [before is not None and before.is_fsdp1, seen.is_fsdp1],
        "is_others": seen.is_others,
        "have_state": [before is not None and before.has_state, seen.has_state],
        "compared": compared,
        "number": seen.number,
        "is_enlarged": before is not None and _is_enlarged(before, seen, differences),
        "differences": [each.as_dict() for each in differences],
    }
    (found / f"step-{seen.number}.json").write_text(json.dumps(document))


def _is_enlarged(before: Seen, after: Seen, differences: list[Difference]) -> bool:
    """Tell whether the step differs by more than rounding only as an optimizer enlarges that of gradients."""
    is_of_step = all(
        is_rounding(each.gap) or (each.stage in {"gradient", "parameter"} and each.step == after.number)
        for each in differences
    )
    seen = [(before.tensors[stage], after.tensors[stage]) for stage in ("gradient", "parameter")]
    return is_of_step and is_enlarged(*seen)


def _differences(before: Seen, after: Seen) -> Iterator[Difference]:
    """Yield what differs in a step, in the order in which the step comes to it."""
    number = after.number
    for what in ("kind", "optimizer", "models"):
        one, other = getattr(before, what), getattr(after, what)
        if one != other:
            gap = Gap(words=f"{what}: {one} under FSDP1, {other} under FSDP2")
            yield _difference(number, "optimizer group", "", gap)
            return
    yield from _gaps(number - 1, "parameter", before.start, after.start)
    for name in sorted(before.groups.keys() | after.groups.keys()):
        if (gap_of_group := group_gap(before.groups.get(name), after.groups.get(name))) is not None:
            yield _difference(number, "optimizer group", name, gap_of_group)
    for stage, tensors in after.tensors.items():
        yield from _gaps(number, stage, before.tensors[stage], tensors)


def _gaps(number: int, stage: Stage, before: Tensors, after: Tensors) -> Iterator[Difference]:
    for name in dict.fromkeys([*before, *after]):
        if (gap := find_gap(before.get(name), after.get(name))) is not None:
            yield _difference(number, stage, name, gap)


def _difference(number: int, stage: Stage, name: str, gap: Gap) -> Difference:
    ranks = 1 if is_alone() else dist.get_world_size()
    return Difference(
        step=number,
        stage=stage,
        name=name,
        module=name.rpartition(".")[0],
        rank=0,
        gap=gap,
        clue=clue_of(stage, gap, None, ranks),
    )
