"""Where everything goes: into the model's own memory, into optimizers, into what ``extra`` names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

from fsdp_migrate.checkpoint_convert.formats.unflatten import nest
from fsdp_migrate.checkpoint_convert.loading.reader import cast_finding
from fsdp_migrate.errors import CheckpointMismatchError
from fsdp_migrate.findings import make_finding, named
from fsdp_migrate.loading.offer import Leaf, Offer, StoredTensor, build_extra
from fsdp_migrate.loading.transfer import Job
from fsdp_migrate.loading.wanted import Wanted, blank_state, place_of
from fsdp_migrate.runtime.sharded import local_of


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch import nn

    from fsdp_migrate.findings import Finding
    from fsdp_migrate.loading.fit import Fit


@dataclass(slots=True)
class ModelPlan:
    """What is read into the model, and what is given to it once it is read."""

    jobs: list[Job] = field(default_factory=list)
    rest: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class StatePlan:
    """What is read for optimizers: each value by parameter and field, and each setting by group."""

    jobs: list[Job] = field(default_factory=list)
    state: dict[str, dict[str, Any]] = field(default_factory=dict)
    settings: list[dict[str, Any]] = field(default_factory=list)


@dataclass(slots=True)
class ExtraPlan:
    """What is read for ``extra``: leaves with their paths."""

    jobs: list[Job] = field(default_factory=list)
    leaves: dict[str, list[tuple[tuple[Any, ...], Any]]] = field(default_factory=dict)


def _whole(leaf: Leaf, jobs: list[Job]) -> Any:
    """Return a value, or a whole tensor that a job is to fill."""
    if not isinstance(leaf, StoredTensor):
        return leaf.load()
    tensor = torch.empty(leaf.shape, dtype=getattr(torch, leaf.dtype))
    jobs.append(Job(leaf, place_of(tensor)))
    return tensor


def plan_model(wanted: Wanted, found: Fit) -> ModelPlan:
    """Plan to read into the memory of parameters and buffers; once where names share it.

    Of several names the last counts, as where torch copies one after the other.
    """
    plan = ModelPlan()
    own = {_memory(tensor) for tensor in wanted.tensors}
    shared: dict[tuple[int, int, tuple[int, ...]], Job] = {}
    nested: dict[str, list[tuple[tuple[Any, ...], Any]]] = {}
    for name, leaf in found.model.items():
        if name not in wanted.model:  # below a module's extra state
            top, _, below = name.partition("_extra_state.")
            path = tuple(int(step) if step.isdigit() else step for step in below.split("."))
            nested.setdefault(f"{top}_extra_state", []).append((path, _whole(leaf, plan.jobs)))
            continue
        value = wanted.model[name]
        if not isinstance(value, torch.Tensor) or not isinstance(leaf, StoredTensor):
            plan.rest[name] = _whole(leaf, plan.jobs)
            continue
        place = place_of(value)
        if place.local.numel() and _memory(value) not in own:
            # A hook made it for the state dict; the model takes it by a hook of its own.
            plan.rest[name] = torch.empty_like(value)
            plan.jobs.append(Job(leaf, place_of(plan.rest[name])))
            continue
        # Shards without elements have one address, and are different tensors all the same.
        key = (*_memory(value), tuple(value.shape)) if place.local.numel() else (0, len(shared), ())
        shared[key] = Job(leaf, place)
    plan.jobs += shared.values()
    plan.rest.update({name: nest(leaves) for name, leaves in nested.items()})
    return plan


def _memory(tensor: torch.Tensor) -> tuple[int, int]:
    local = local_of(tensor)
    return local.untyped_storage().data_ptr(), int(local.storage_offset())


def load_rest_of_model(model: nn.Module, plan: ModelPlan) -> None:
    """Give a model what is not in its parameters and buffers, such as what ``set_extra_state`` takes."""
    if plan.rest:
        # Not strict: the parameters and buffers are not in it, they were read into their own memory.
        set_model_state_dict(model, dict(plan.rest), options=StateDictOptions(strict=False))


def model_casts(jobs: Iterable[Job]) -> list[Finding]:
    """Say what of a model was cast."""
    return _casts((job.stored, job.place.local.dtype) for job in jobs)


def _casts(pairs: Iterable[tuple[StoredTensor, torch.dtype]]) -> list[Finding]:
    kinds: dict[tuple[str, str], dict[str, None]] = {}
    for stored, dtype in pairs:
        held = str(dtype).removeprefix("torch.")
        if held != stored.dtype:
            kinds.setdefault((stored.dtype, held), {})[stored.key] = None
    return [cast_finding(*kind, list(keys)) for kind, keys in kinds.items()]


def plan_optimizers(wanted: Wanted, found: Fit) -> StatePlan:
    """Plan to read optimizer state into new memory, each part of this rank's."""
    plan = StatePlan()
    if not wanted.optimizers:
        return plan
    params = {every[0]: param for param, every in wanted.names.items()}
    for name, fields in found.state.items():
        plan.state[name] = {
            field: _state_value(params[name], leaf, plan.jobs) for field, leaf in fields.items()
        }
    plan.settings = [
        {key: _whole(leaf, plan.jobs) for key, leaf in settings.items()} for settings in found.settings
    ]
    return plan


def _state_value(param: torch.Tensor, leaf: Leaf, jobs: list[Job]) -> Any:
    if not isinstance(leaf, StoredTensor):
        return leaf.load()
    tensor = blank_state(param, leaf.shape, getattr(torch, leaf.dtype))
    jobs.append(Job(leaf, place_of(tensor)))
    return tensor


def load_optimizers(wanted: Wanted, found: Fit, plan: StatePlan) -> list[Finding]:
    """Give every optimizer its part of what was read, by its own ``load_state_dict``; say what was cast."""
    settings = iter(plan.settings)
    casts: list[tuple[StoredTensor, torch.dtype]] = []
    notes: dict[tuple[str, str, str], list[str]] = {}
    for optimizer in wanted.optimizers:
        params = [param for group in optimizer.param_groups for param in group["params"]]
        state = {
            index: _nested_fields(plan.state[name])
            for index, param in enumerate(params)
            if (name := wanted.names[param][0]) in plan.state
        }
        # By the optimizer's own method, which casts as it wants its state. Its own groups come first, so that
        # settings which the checkpoint does not have stay.
        groups = optimizer.state_dict()["param_groups"]
        own = {param: dict(state) for param, state in optimizer.state.items()}
        optimizer.load_state_dict(
            {"state": state, "param_groups": [{**group, **next(settings)} for group in groups]}
        )
        for param in params:
            fields = found.state.get(wanted.names[param][0], {})
            casts += list(_held(fields, optimizer.state.get(param, {})))
            _note_changes(wanted.names[param][0], own.get(param, {}), optimizer.state.get(param, {}), notes)
    return [*_casts(casts), *_notes(notes)]


def _note_changes(
    name: str,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    notes: dict[tuple[str, str, str], list[str]],
) -> None:
    """Note by which words an optimizer steps a parameter otherwise than it was made to, such as use_muon."""
    for key, value in before.items():
        loaded = after.get(key)
        if isinstance(value, bool | str) and isinstance(loaded, bool | str) and loaded != value:
            notes.setdefault((key, repr(value), repr(loaded)), []).append(name)


def _notes(notes: Mapping[tuple[str, str, str], list[str]]) -> Iterator[Finding]:
    for (key, value, loaded), names in notes.items():
        text = (
            f"`{key}` of {named(names)} was {value} in the optimizer, and is {loaded} as in the checkpoint. "
            "FSDP1's parameters had one dimension, so that classes that sort by dimensions (Muon) took "
            "matrices for vectors."
        )
        hint = (
            "To go on as under FSDP1 do nothing. Otherwise load with `weights_only`, and train new moments."
        )
        yield make_finding("FM460", f"optimizer.{key}", text, hint)


def _held(fields: Mapping[str, Leaf], state: Mapping[str, Any]) -> Iterator[tuple[StoredTensor, torch.dtype]]:
    for name, leaf in fields.items():
        value = state.get(name)
        if isinstance(leaf, StoredTensor) and isinstance(value, torch.Tensor):
            yield leaf, value.dtype


def _nested_fields(fields: Mapping[str, Any]) -> Any:
    """Put fields together whose values were nested when they were saved."""
    if not any("." in name for name in fields):
        return dict(fields)
    leaves = [
        (tuple(int(step) if step.isdigit() else step for step in name.split(".")), value)
        for name, value in fields.items()
    ]
    return nest(leaves)


def plan_extra(offer: Offer) -> ExtraPlan:
    """Plan to read what ``extra`` asks for."""
    plan = ExtraPlan()
    for name, leaves in offer.extra.items():
        plan.leaves[name] = [(path, _whole(leaf, plan.jobs)) for path, leaf in leaves]
    return plan


def load_extra(extra: Mapping[str, Any], plan: ExtraPlan) -> dict[str, Any]:
    """Give objects with ``load_state_dict`` what is theirs; return all values by name.

    Raises:
        CheckpointMismatchError: An object does not take it.
    """
    values: dict[str, Any] = {}
    for name, leaves in plan.leaves.items():
        load = getattr(extra[name], "load_state_dict", None)
        if not callable(load):
            values[name] = build_extra(leaves)
            continue
        # Its own state says what a checkpoint cannot: which keys are numbers, and which mappings were empty.
        own: Any = getattr(extra[name], "state_dict", dict)()
        values[name] = as_in(own, build_extra([*leaves, *_not_stored(own, [path for path, _ in leaves])]))
        try:
            load(values[name])
        except Exception as error:
            msg = (
                f"`{name}`, given in `extra`, does not accept what was saved of it: its `load_state_dict` "
                f"raised {type(error).__name__}: {error}. Model and optimizers are loaded already. "
                "Give `None` in the object's place to get the saved value in the report's `values`."
            )
            raise CheckpointMismatchError(msg) from error
    return values


def _not_stored(own: Any, found: Sequence[tuple[Any, ...]]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the empty mappings of an object's own state of which nothing was found, with their paths.

    torch.distributed.checkpoint stores none, such as LambdaLR's for a function without attributes.
    ``dcp.load`` has no need of them: it writes into the object's own state.
    """
    if found == [()]:  # the whole state is one value
        return
    texts = [tuple(map(str, path)) for path in found]
    for path in _empty_mappings(own, ()):
        text = tuple(map(str, path))
        if not any(other[: len(text)] == text for other in texts):
            yield path, {}


def _empty_mappings(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, Mapping) and not value and path:
        yield path
    elif isinstance(value, Mapping | list):
        for key, below in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _empty_mappings(below, (*path, key))


def as_in(own: Any, found: Any) -> Any:
    """Return what was found with the keys that an object's own state has.

    torch.distributed.checkpoint makes text of keys that are numbers, such as the milestones of MultiStepLR.

    Example:
        >>> as_in({"milestones": {2: 1}, "gamma": 0.5}, {"milestones": {"5": 1}, "gamma": 0.1})
        {'milestones': {5: 1}, 'gamma': 0.1}
    """
    if isinstance(own, Mapping) and isinstance(found, Mapping):
        names = {str(key): key for key in own}
        is_numbered = bool(own) and all(isinstance(key, int) for key in own)
        made: dict[Any, Any] = {}
        for key, value in found.items():
            other = int(key) if is_numbered and str(key).isdigit() else key
            name = names.get(str(key), other)
            made[name] = as_in(own.get(name), value)
        return Counter(made) if isinstance(own, Counter) else made
    if isinstance(own, list) and isinstance(found, list) and len(own) == len(found):
        return [as_in(*pair) for pair in zip(own, found, strict=True)]
    return found
