"""Put the parameters' names in place of an optimizer's numbers, in a source where no rank's state is lost."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from fsdp_migrate.checkpoint_convert.manifest.classify import entry_path, find_parts
from fsdp_migrate.checkpoint_convert.manifest.keys import Path, join_path, strip_wrappers
from fsdp_migrate.checkpoint_convert.manifest.manifest import BytesEntry, InlineValue, Part, TensorEntry
from fsdp_migrate.checkpoint_convert.sources.parameter_numbers import match_numbers, parameter_shape
from fsdp_migrate.findings import counted, make_finding


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fsdp_migrate.checkpoint_convert.manifest.boxes import Shape
    from fsdp_migrate.checkpoint_convert.manifest.manifest import Entry
    from fsdp_migrate.checkpoint_convert.manifest.options import ModelOutline, SourceOptions
    from fsdp_migrate.checkpoint_convert.sources.contents import Contents


_Named = tuple[dict[int, str] | None, str]
FLAT_REFUSALS: Final = frozenset({"FM238", "FM239"})
"""What is refused of flat parameters until the model, and how FSDP1 flattened it, are known."""
_STATE: Final = "state"
_GROUPS: Final = "param_groups"
# torch.nn.modules.batchnorm: buffers of BatchNorm, SyncBatchNorm and InstanceNorm.
_STATISTICS: Final = ("running_mean", "running_var", "num_batches_tracked")
_REMEDY: Final = (
    "Give the model (`--model pkg.mod:factory`), or the names in the order of the numbers (in Python: "
    "`SourceOptions(parameter_names=...)`), or leave the optimizer out with `weights_only` (--weights-only)."
)


def name_numbers(contents: Contents, options: SourceOptions) -> None:
    """Give the entries of numbered optimizers the parameters' names, where that can be done surely.

    Where it cannot, a finding refuses the conversion of the optimizer, and says what to give.
    """
    if all(len(entry_path(entry)) == 1 for entry in contents.entries.values()):
        # The weights of a model and no more, and there can be very many.
        return
    parts = find_parts(contents.entries)
    models = [part for part in parts if part.kind == "model"]
    numbered = {
        part: groups
        for part in parts
        if part.kind == "optimizer" and (groups := _numbers(part, contents.entries)) is not None
    }
    found = {
        part: _names(part, groups, models, contents.entries, options) for part, groups in numbered.items()
    }
    if len(numbered) > 1 and any(names is None for names, _ in found.values()):
        found = _names_together(numbered, models, contents.entries, options) or found
    # Flat parameters that could not be taken apart are the reason, and were said to be.
    is_flat = any(finding.code in FLAT_REFUSALS for finding in contents.findings)
    for part, (names, reason) in found.items():
        if names is None:
            if not is_flat:
                contents.findings.append(make_finding("FM234", part.name, f"{reason}.", _REMEDY))
            continue
        _rename(part, names, contents)
        contents.findings.append(
            make_finding("FM233", part.name, f"{counted(len(names), 'parameter')}, in the order of {reason}.")
        )


def _numbers(part: Part, entries: Mapping[str, Entry]) -> list[list[int]] | None:
    """Return the numbers of each group, or None where parameters have names."""
    groups: list[list[int]] = []
    for key in part.keys:
        below = entry_path(entries[key])[len(part.prefix) :]
        if len(below) == 3 and below[0] == _GROUPS and below[2] == "params":
            value = _inline(entries[key])
            if not isinstance(value, list) or not all(type(number) is int for number in value):
                return None
            groups.append(value)
    return groups if any(groups) else None


def _inline(entry: Entry) -> object:
    return entry.inline.value if isinstance(entry, BytesEntry) and entry.inline is not None else None


def _names(
    part: Part,
    groups: Sequence[Sequence[int]],
    models: Sequence[Part],
    entries: Mapping[str, Entry],
    options: SourceOptions,
) -> _Named:
    """Return the name of each number and what told it, or None and why nothing did."""
    numbers = [number for group in groups for number in group]
    shapes = _moment_shapes(part, entries)
    # From what is surest: the optimizer's own names, names that the user gives, the user's model; and last
    # the models in the checkpoint, of which one and no more may fit.
    own = _own_names(part, numbers, entries)
    if own is not None:
        return own, "the names that the optimizer keeps itself"
    if options.parameter_names is not None:
        if len(options.parameter_names) != len(set(numbers)) or len(set(options.parameter_names)) < len(
            numbers
        ):
            given = counted(len(options.parameter_names), "name")
            return None, f"{given} given for {counted(len(numbers), 'number')}"
        # By number, whatever the groups' order is: so the help says to give them.
        return dict(zip(sorted(numbers), options.parameter_names, strict=True)), "the names that were given"
    if options.model is not None:
        named, reason = _names_of_model(groups, shapes, options.model)
        # Of several models it may be another's, which that one tells.
        if named is not None or len(models) < 2:
            return named, reason
    found = {model.name: match_numbers(groups, shapes, _candidates(model, entries)) for model in models}
    fitting = {name: names for name, names in found.items() if isinstance(names, dict)}
    if len(fitting) == 1:
        ((where, names),) = fitting.items()
        return names, f"`{where}`"
    if len(models) == 1:
        return None, str(found[models[0].name])
    return None, f"it fits {len(fitting)} of the {len(models)} models beside it to take the names from"


def _names_of_model(
    groups: Sequence[Sequence[int]], shapes: Mapping[int, Shape], model: ModelOutline
) -> _Named:
    """Return the names that a model has for numbers; its optimizer's groups tell them by themselves."""
    own = model.groups or ()
    if list(map(len, own)) == list(map(len, groups)):
        named = dict(
            zip((n for group in groups for n in group), (n for group in own for n in group), strict=True)
        )
        known = model.parameters
        if all(shapes.get(number, known[name]) == known[name] for number, name in named.items()):
            return named, "the optimizer that was given"
    found = match_numbers(groups, shapes, model.parameters)
    return (found, "the model that was given") if isinstance(found, dict) else (None, found)


def _names_together(
    numbered: Mapping[Part, Sequence[Sequence[int]]],
    models: Sequence[Part],
    entries: Mapping[str, Entry],
    options: SourceOptions,
) -> dict[Part, _Named] | None:
    """Return the names of several optimizers of one model, each of whose parameters is in one of them."""
    if options.parameter_names is not None or (options.model is None and len(models) != 1):
        return None
    candidates = options.model.parameters if options.model else _candidates(models[0], entries)
    every: list[list[int]] = []
    shapes: dict[int, Shape] = {}
    places: dict[int, tuple[Part, int]] = {}
    for part, groups in numbered.items():
        # Each optimizer counts from 0: all of them together get numbers of their own.
        own = {number: len(places) + at for at, number in enumerate(n for group in groups for n in group)}
        places.update({new: (part, number) for number, new in own.items()})
        every += [[own[number] for number in group] for group in groups]
        shapes.update({own[n]: shape for n, shape in _moment_shapes(part, entries).items() if n in own})
    found = match_numbers(every, shapes, candidates)
    if not isinstance(found, dict):
        return None
    names: dict[Part, dict[int, str]] = {part: {} for part in numbered}
    for new, name in found.items():
        part, number = places[new]
        names[part][number] = name
    where = "the model that was given" if options.model else f"`{models[0].name}`"
    return {part: (own, f"{where}, together with the other optimizers") for part, own in names.items()}


def _moment_shapes(part: Part, entries: Mapping[str, Entry]) -> dict[int, Shape]:
    """Return the shape of each parameter that has state of its shape, or of its rows and columns."""
    states: dict[int, dict[str, Shape]] = {}
    for key in part.keys:
        entry = entries[key]
        below = entry_path(entry)[len(part.prefix) :]
        if len(below) == 3 and below[0] == _STATE and isinstance(entry, TensorEntry):
            states.setdefault(int(below[1]), {})[str(below[2])] = entry.shape
    found = {number: parameter_shape(state) for number, state in states.items()}
    return {number: shape for number, shape in found.items() if shape is not None}


def _own_names(part: Part, numbers: Sequence[int], entries: Mapping[str, Entry]) -> dict[int, str] | None:
    """Return the names of an optimizer that was built from named parameters (torch 2.6 and later)."""
    labels: list[str] = []
    for key in part.keys:
        below = entry_path(entries[key])[len(part.prefix) :]
        if len(below) == 3 and below[0] == _GROUPS and below[2] == "param_names":
            value = _inline(entries[key])
            labels += [str(name) for name in value] if isinstance(value, list) else []
    if len(labels) != len(numbers) or len(set(labels)) != len(labels):
        return None
    return dict(zip(numbers, labels, strict=True))


def _candidates(model: Part, entries: Mapping[str, Entry]) -> dict[str, Shape]:
    """Return names and shapes of what may be a model's parameters, in their order; of tied ones the first.

    Running statistics are buffers. An integer is never trained, so no state has its shape; it may yet be one
    of the parameters that an optimizer has no state of.
    """
    statistics = _statistics(model, entries)
    seen: set[object] = set()
    found: dict[str, Shape] = {}
    for key in model.keys:
        entry = entries[key]
        if not isinstance(entry, TensorEntry) or key in statistics:
            continue
        place = (entry.shape, *(chunk.stored for chunk in entry.chunks))
        if entry.nbytes and place in seen:
            continue
        seen.add(place)
        name = ".".join(map(str, entry_path(entry)[len(model.prefix) :]))
        is_trainable = entry.is_float or entry.dtype.startswith("complex")
        # The shape of no state begins with -1, so only a number without state can stand for it.
        found[strip_wrappers(name)] = entry.shape if is_trainable else (-1, *entry.shape)
    return found


def _statistics(model: Part, entries: Mapping[str, Entry]) -> set[str]:
    """Return the keys of the running statistics of normalization layers, which come together."""
    heads = {key.removesuffix(_STATISTICS[0]) for key in model.keys if key.endswith(_STATISTICS[0])}
    whole = {head for head in heads if head + _STATISTICS[1] in entries}
    return {head + name for head in whole for name in _STATISTICS}


def _rename(part: Part, names: Mapping[int, str], contents: Contents) -> None:
    """Put names for numbers in every path of a part and in its lists, and keep the order of entries."""
    own = set(part.keys)
    entries: dict[str, Entry] = {}
    for key, entry in contents.entries.items():
        named = _renamed(part, entry, names) if key in own else entry
        entries[named.key] = named
    contents.entries = entries


def _renamed(part: Part, entry: Entry, names: Mapping[int, str]) -> Entry:
    path: Path = entry_path(entry)
    start = len(part.prefix)
    below = path[start:]
    if below[0] == _STATE and len(below) > 1 and str(below[1]).isdigit():
        path = (*path[: start + 1], names.get(int(below[1]), str(below[1])), *path[start + 2 :])
        changes: dict[str, Any] = {"key": join_path(path), "path": path}
        return replace(entry, **changes)
    value = _inline(entry)
    if (
        below[0] == _GROUPS
        and below[-1] == "params"
        and isinstance(entry, BytesEntry)
        and isinstance(value, list)
    ):
        return replace(entry, inline=InlineValue([names[number] for number in value]))
    return entry
