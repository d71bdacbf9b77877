"""In each rank of a script that trains: what its optimizers step, whole and by names.

A run keeps in a folder what it had at each step. Another is compared with that as it goes, so that neither
has more than one model in memory.
"""

from __future__ import annotations

import gc
import json
import os
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FlatParameter, FSDPModule
from torch.distributed.tensor import DTensor

from fsdp_migrate.parity.comparing import group_gap, groups_of
from fsdp_migrate.parity.explaining import clue_of
from fsdp_migrate.parity.recording import clean_name
from fsdp_migrate.parity.report import Difference
from fsdp_migrate.parity.tensors import Gap, find_gap
from fsdp_migrate.parity.trainees import Prepared, UnderFSDP1, is_alone, quiet_fsdp1
from fsdp_migrate.runtime.fsdp1_models import holds_fsdp1
from fsdp_migrate.sharding.prepare import fsdp1_arguments


if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.optim import Optimizer

    from fsdp_migrate.parity.report import Stage
    from fsdp_migrate.parity.trainees import Tensors


KEPT, WITH, FOUND = "FSDP_MIGRATE_KEPT", "FSDP_MIGRATE_WITH", "FSDP_MIGRATE_FOUND"
"""Environment variables: the folder where this run keeps its steps, that of the run to compare with, and that
of what is found. Each may be missing."""

STEPS = "FSDP_MIGRATE_STEPS"
"""Environment variable: how many steps are seen."""


_OF_NO_MODULE = "(of no module)"


@dataclass
class Seen:
    """What one step shows. ``start`` has the parameters before the first step of a model.

    ``is_fsdp1`` tells whether torch's FSDP1 wraps the model or a part of it, ``is_others`` whether FSDP2
    shards it and ``prepare_fully_shard`` had no part in it. ``model`` is -1 where the optimizer steps no
    parameter of a module.
    """

    number: int
    optimizer: int
    model: int
    kind: str
    groups: dict[str, dict[str, Any]]
    is_fsdp1: bool
    is_others: bool
    tensors: dict[Stage, Tensors]
    start: Tensors = field(default_factory=dict)


@dataclass
class Watch:
    """What is watched in this process, in the order in which it was seen first."""

    models: list[nn.Module] = field(default_factory=list)
    optimizers: list[Optimizer] = field(default_factory=list)
    steps: int = 0
    depth: int = 0
    open: tuple[Seen, UnderFSDP1 | Prepared | None, Tensors] | None = None


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
    if watch.depth > 1 or watch.steps >= int(os.environ.get(STEPS, "0")) or _changes_nothing(optimizer):
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
    return all(_plain(group.get("lr")) == 0 for group in optimizer.param_groups)


def _see_gradients(watch: Watch, optimizer: Optimizer) -> None:
    with quiet_fsdp1():
        model = _model_of(optimizer, watch.models)
        loose = _loose(optimizer, model)
        if model is None and not loose:
            return
        is_new = model is not None and model not in watch.models
        if model is not None and is_new:
            watch.models.append(model)
        if optimizer not in watch.optimizers:
            watch.optimizers.append(optimizer)
        watch.steps += 1
        shown = None if model is None else _shown(model, optimizer)
        gradients = {name: each.grad for name, each in loose.items() if each.grad is not None}
        seen = Seen(
            number=watch.steps,
            optimizer=watch.optimizers.index(optimizer),
            model=-1 if model is None else watch.models.index(model),
            kind=type(optimizer).__name__,
            is_fsdp1=isinstance(shown, UnderFSDP1),
            is_others=model is not None and _is_others(model),
            groups=_groups(optimizer, shown, loose),
            tensors={"gradient": {**(shown.gradients() if shown else {}), **_whole(gradients)}},
            start=shown.parameters() if shown is not None and is_new else {},
        )
        watch.open = seen, shown, loose


def after_step(optimizer: Optimizer) -> None:
    """See the parameters and buffers, and keep or compare the step; a collective call of all ranks."""
    del optimizer
    watch = _watch()
    watch.depth -= 1
    if watch.depth or watch.open is None:
        return
    (seen, shown, loose), watch.open = watch.open, None
    with quiet_fsdp1():
        seen.tensors["parameter"] = {**(shown.parameters() if shown else {}), **_whole(loose)}
        seen.tensors["buffer"] = shown.buffers() if shown else {}
    if is_alone() or dist.get_rank() == 0:
        _keep_or_compare(seen)


def _model_of(optimizer: Optimizer, known: list[nn.Module]) -> nn.Module | None:
    """Return the outermost module that holds what an optimizer steps: names begin there in both runs."""
    stepped = {id(param) for group in optimizer.param_groups for param in group["params"]}

    def holds(module: nn.Module) -> bool:
        return any(id(param) in stepped for param in module.parameters())

    for each in known:
        if holds(each):
            return each
    # By the type: `isinstance` asks an object for its class, which runs code of lazy imports and proxies.
    modules = [each for each in gc.get_objects() if issubclass(type(each), nn.Module)]
    inner = {id(child) for each in modules for child in each.children()}
    outermost = [each for each in modules if id(each) not in inner and holds(each)]
    return min(outermost, key=lambda each: (len(list(each.modules())), type(each).__name__), default=None)


def _loose(optimizer: Optimizer, model: nn.Module | None) -> Tensors:
    """Return what an optimizer steps besides a model's parameters, such as a temperature, by its place."""
    held = set() if model is None else {id(param) for param in model.parameters()}
    stepped = [param for group in optimizer.param_groups for param in group["params"]]
    loose = [param for param in stepped if id(param) not in held]
    return {f"{_OF_NO_MODULE} {place}": param for place, param in enumerate(loose)}


def _whole(tensors: Tensors) -> Tensors:
    own = {name: each.detach() for name, each in tensors.items()}
    return {
        name: (each.full_tensor() if isinstance(each, DTensor) else each).cpu().clone()
        for name, each in own.items()
    }


def _shown(model: nn.Module, optimizer: Optimizer) -> UnderFSDP1 | Prepared:
    device = next(model.parameters()).device
    if holds_fsdp1(model):
        wrapped = UnderFSDP1(model, device, on_host=True, records=False)
        wrapped.adopt(model, optimizer, uses_originals=not _has_flat(model))
        return wrapped
    prepared = Prepared(model, device, on_host=True, records=False)
    prepared.adopt(optimizer)
    return prepared


def _is_others(model: nn.Module) -> bool:
    units = [each for each in model.modules() if isinstance(each, FSDPModule)]
    return bool(units) and all(fsdp1_arguments(each) is None for each in model.modules())


def _has_flat(model: nn.Module) -> bool:
    return any(isinstance(param, FlatParameter) for param in model.parameters())


def _groups(
    optimizer: Optimizer, shown: UnderFSDP1 | Prepared | None, loose: Tensors
) -> dict[str, dict[str, Any]]:
    """Return the settings of each parameter that the optimizer has, as plain values."""
    names = {id(param): name for name, param in loose.items()}
    found: dict[str, dict[str, Any]] = {}
    if isinstance(shown, UnderFSDP1) and not shown.uses_originals:
        found = groups_of(shown.optimizer_state())
    elif shown is not None:
        names |= {id(param): clean_name(name) for name, param in shown.model.named_parameters()}
    found |= {
        names[id(param)]: {key: value for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
        for param in group["params"]
        if id(param) in names
    }
    return {name: {key: _plain(each) for key, each in group.items()} for name, group in found.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.item() if value.numel() == 1 else value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else type(value).__name__


def _keep_or_compare(seen: Seen) -> None:
    name = f"step-{seen.number}.pt"
    if (kept := os.environ.get(KEPT)) is not None:
        torch.save(asdict(seen), Path(kept) / name)
    other = os.environ.get(WITH)
    if other is None:
        return
    path = Path(other) / name
    before = Seen(**torch.load(path, weights_only=True)) if path.exists() else None
    differences = [] if before is None else list(_differences(before, seen))
    compared = sum(len(each) for each in seen.tensors.values()) + len(seen.start)
    document = {
        "is_in_both": before is not None,
        "are_fsdp1": [before is not None and before.is_fsdp1, seen.is_fsdp1],
        "is_others": seen.is_others,
        "compared": compared,
        "differences": [each.as_dict() for each in differences],
    }
    (Path(os.environ[FOUND]) / f"step-{seen.number}.json").write_text(json.dumps(document))


def _differences(before: Seen, after: Seen) -> Iterator[Difference]:
    """Yield what differs in a step, in the order in which the step comes to it."""
    number = after.number
    for what in ("kind", "optimizer", "model"):
        one, other = getattr(before, what), getattr(after, what)
        if one != other:
            gap = Gap(words=f"the {what} is {one} under FSDP1, {other} under FSDP2")
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
