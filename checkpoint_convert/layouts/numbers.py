"""Put the parameters' names in place of an optimizer's numbers, in a source where no rank's state is lost."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from fsdp_migrate.checkpoint_convert.keys import Path, join_path, strip_wrappers
from fsdp_migrate.checkpoint_convert.metadata import BytesEntry, InlineValue, Part, TensorEntry
from fsdp_migrate.checkpoint_convert.parameter_numbers import MOMENTS, match_numbers
from fsdp_migrate.checkpoint_convert.parts import entry_path, find_parts
from fsdp_migrate.findings import make_finding


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fsdp_migrate.checkpoint_convert.layouts.tree import Contents
    from fsdp_migrate.checkpoint_convert.metadata import Entry
    from fsdp_migrate.checkpoint_convert.reshard import Shape
    from fsdp_migrate.checkpoint_convert.source_options import SourceOptions


_STATE: Final = "state"
_GROUPS: Final = "param_groups"
_REMEDY: Final = (
    "Give the model (`--model pkg.mod:factory`), or the names in the order of the numbers "
    "(`SourceOptions(parameter_names=...)`), or leave the optimizer out with weights_only."
)


def name_numbers(contents: Contents, options: SourceOptions) -> None:
    """Give the entries of numbered optimizers the parameters' names, where that can be done surely.

    Where it cannot, a finding refuses the conversion of the optimizer, and says what to give.
    """
    parts = find_parts(contents.entries)
    models = [part for part in parts if part.kind == "model"]
    for part in parts:
        if part.kind != "optimizer":
            continue
        groups = _numbers(part, contents.entries)
        if groups is None:
            continue
        names, reason = _names(part, groups, models, contents.entries, options)
        if names is None:
            contents.findings.append(make_finding("FM234", part.name, f"{reason}.", _REMEDY))
            continue
        _rename(part, names, contents)
        contents.findings.append(
            make_finding("FM233", part.name, f"{len(names)} parameters, in the order of {reason}.")
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
) -> tuple[dict[int, str] | None, str]:
    """Return the name of each number and what told it, or None and why nothing did."""
    numbers = [number for group in groups for number in group]
    shapes = _moment_shapes(part, entries)
    own = _own_names(part, numbers, entries)
    if own is not None:
        return own, "the names that the optimizer keeps itself"
    if options.parameter_names is not None:
        if len(options.parameter_names) != len(set(numbers)) or len(set(options.parameter_names)) < len(
            numbers
        ):
            return None, f"{len(options.parameter_names)} names were given for {len(numbers)} numbers"
        return dict(zip(sorted(numbers), options.parameter_names, strict=True)), "the names that were given"
    if options.model is not None:
        found = match_numbers(groups, shapes, options.model.parameters)
        where = "the model that was given"
    elif len(models) == 1:
        found = match_numbers(groups, shapes, _candidates(models[0], entries))
        where = f"`{models[0].name}`"
    else:
        found, where = f"there are {len(models)} models beside it to take the names from", ""
    return (found, where) if isinstance(found, dict) else (None, found)


def _moment_shapes(part: Part, entries: Mapping[str, Entry]) -> dict[int, Shape]:
    shapes: dict[int, Shape] = {}
    for key in part.keys:
        entry = entries[key]
        below = entry_path(entry)[len(part.prefix) :]
        if len(below) == 3 and below[0] == _STATE and below[2] in MOMENTS and isinstance(entry, TensorEntry):
            shapes[int(below[1])] = entry.shape
    return shapes


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
    """Return names and shapes of a model's tensors in their order; of tied ones the first."""
    seen: set[object] = set()
    found: dict[str, Shape] = {}
    for key in model.keys:
        entry = entries[key]
        if not isinstance(entry, TensorEntry):
            continue
        place = (entry.shape, *(chunk.stored for chunk in entry.chunks))
        if entry.nbytes and place in seen:
            continue
        seen.add(place)
        name = ".".join(map(str, entry_path(entry)[len(model.prefix) :]))
        found[strip_wrappers(name)] = entry.shape
    return found


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
