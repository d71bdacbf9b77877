"""Two checkpoints under names that can be compared, whatever frameworks they are of."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from fsdp_migrate.checkpoint_convert.formats.unflatten import pick_value, read_value
from fsdp_migrate.checkpoint_convert.manifest.keys import join_path, parse_rename
from fsdp_migrate.checkpoint_convert.manifest.manifest import BytesEntry, InlineValue, TensorEntry
from fsdp_migrate.checkpoint_convert.manifest.param_group_defaults import with_newer_settings
from fsdp_migrate.checkpoint_convert.manifest.planned import PlannedTensor, PlannedValue
from fsdp_migrate.checkpoint_convert.planning.mapped import map_wanted
from fsdp_migrate.checkpoint_convert.planning.merged import check_merged
from fsdp_migrate.checkpoint_convert.planning.plan import plan_dtype
from fsdp_migrate.checkpoint_convert.planning.renames import plan_renames
from fsdp_migrate.checkpoint_convert.targets.base import Place, Target, UnchangedTarget, is_empty
from fsdp_migrate.checkpoint_convert.targets.safetensors import (
    HUGGINGFACE_ATTRIBUTE,
    is_huggingface_model,
)
from fsdp_migrate.checkpoint_convert.targets.torch import TorchTarget
from fsdp_migrate.checkpoint_convert.targets.torchtitan import flatten_optimizers


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fsdp_migrate.checkpoint_convert.manifest.keys import RenameRule
    from fsdp_migrate.checkpoint_convert.manifest.manifest import Entry, Manifest, Part
    from fsdp_migrate.checkpoint_convert.manifest.parameter_map import ParameterMap
    from fsdp_migrate.checkpoint_convert.manifest.planned import PlannedEntry
    from fsdp_migrate.checkpoint_convert.storage.folders import Folder


@dataclass(frozen=True, slots=True)
class RequestedChanges:
    """What the conversion of the first into the second was asked to change.

    Attributes:
        rules: Changes of parameters' names.
        casts: The type of the weights of each kind of part; None where they were to stay as they are.
        weights_only: Whether only models were converted.
        without_optimizer: Whether optimizers were left out.
        map: What became of parameters that the second holds otherwise.
    """

    rules: Sequence[RenameRule] = ()
    casts: Mapping[str, str | None] = field(default_factory=dict)
    weights_only: bool = False
    without_optimizer: bool = False
    map: ParameterMap | None = None


@dataclass(frozen=True, slots=True)
class AlignedCheckpoint:
    """One of two checkpoints: its entries under the names by which they are compared.

    ``dtypes`` is the type that a tensor of the first gets before it is compared, where it gets another one.
    """

    manifest: Manifest
    folder: Folder
    entries: Mapping[str, Entry]
    names: Mapping[str, Mapping[str, str]]
    dtypes: Mapping[str, str] = field(default_factory=dict)


def align_checkpoints(
    manifests: tuple[Manifest, Manifest], folders: tuple[Folder, Folder], requested: RequestedChanges
) -> tuple[tuple[AlignedCheckpoint, AlignedCheckpoint], tuple[str, ...]]:
    """Return both sides, and the keys that have no counterpart because frameworks keep such things elsewhere.

    Where models and optimizers stand in the same places, everything is compared. Otherwise models and
    optimizers are brought to the same places, and of the rest what both have.

    Raises:
        ConfigError: A rule changes no name of the first.
        PlanError: The map that was asked for cannot be applied to the first.
    """
    # What a conversion adds is compared too, with what it would add to a source that lacks it.
    mapped = _mapped(manifests[0], folders[0], requested), manifests[1]
    one, other = (with_newer_settings(found, found.parts)[0] for found in mapped)
    manifests = one, other
    parts = [[part for part in m.parts if _is_wanted(part, requested)] for m in manifests]
    is_alike = _places(one, parts[0]) == _places(other, parts[1])
    kinds = [sum(part.kind == "optimizer" for part in found) for found in parts]
    # By numbers where both have as many optimizers. Otherwise several become one, as plain torch joins them.
    kind = UnchangedTarget if is_alike else _Numbered if kinds[0] == kinds[1] else TorchTarget
    targets = [kind(m, found) for m, found in zip(manifests, parts, strict=True)]
    # Where one is flattened both are: that forgets the groups, so that there is no way back.
    flat = not is_alike and any(map(_is_flattened, targets))
    left = _side(targets[0], folders[0], requested.rules or _implied_rules(*manifests), flat=flat)
    right = _side(targets[1], folders[1], flat=flat)
    left, right = _with_root_values(left, right), _with_root_values(right, left)
    left = replace(left, dtypes=_dtypes(left, requested.casts))
    if is_alike and one.framework == other.framework and _is_weights(one) == _is_weights(other):
        return (left, right), ()
    aside = _without_counterpart(left, right), _without_counterpart(right, left)
    left, right = (
        replace(side, entries={k: e for k, e in side.entries.items() if e.key not in set(keys)})
        for side, keys in zip((left, right), aside, strict=True)
    )
    return (left, right), (*aside[0], *aside[1])


def _mapped(manifest: Manifest, folder: Folder, requested: RequestedChanges) -> Manifest:
    """Return the first as the map that was asked for changes it."""
    if requested.map is None:
        return manifest
    left = [part.kind for part in manifest.parts if not _is_wanted(part, requested)]
    found = map_wanted(manifest, requested.map, left)
    check_merged(found, folder)
    return found


class _Numbered(TorchTarget):
    """Several models and optimizers by their numbers, all that some frameworks keep of their names."""

    def place(self, part: Part) -> Place | None:
        """Return where a part is compared."""
        if part.kind == "other" or len(self.of_kind(part.kind)) == 1:
            return super().place(part)
        return Place((f"{part.kind}_{self.number(part)}",))


def _with_root_values(side: AlignedCheckpoint, other: AlignedCheckpoint) -> AlignedCheckpoint:
    """Name tensors that lie beside a model at the root, and look like part of it, as the other side does.

    Empty mappings are nothing where the other side has none: a distributed checkpoint cannot hold them.
    """
    kept = {
        name: entry for name, entry in side.entries.items() if name in other.entries or not is_empty(entry)
    }
    side = replace(side, entries=kept)
    entries = {
        entry.key if name not in other.entries and entry.key in other.entries else name: entry
        for name, entry in kept.items()
    }
    return replace(side, entries=entries) if len(entries) == len(side.entries) else side


def _implied_rules(one: Manifest, other: Manifest) -> tuple[RenameRule, ...]:
    """Return what a conversion to safetensors changes of names without being asked."""
    models = [part for part in one.parts if part.kind == "model"]
    is_wrapped = one.framework == "composer" and _is_weights(other) and is_huggingface_model(one, models)
    return (parse_rename(f"^{re.escape(HUGGINGFACE_ATTRIBUTE)}="),) if is_wrapped else ()


def _is_weights(manifest: Manifest) -> bool:
    """Tell whether a checkpoint is of a model alone, because its format holds nothing else."""
    return "safetensors" in manifest.layout and all(part.kind != "optimizer" for part in manifest.parts)


def _is_wanted(part: Part, requested: RequestedChanges) -> bool:
    if part.kind == "optimizer" and requested.without_optimizer:
        return False
    return part.kind == "model" or not requested.weights_only


def _dtypes(side: AlignedCheckpoint, casts: Mapping[str, str | None]) -> dict[str, str]:
    kinds = {key: part.kind for part in side.manifest.parts for key in part.keys}
    return {
        name: dtype
        for name, entry in side.entries.items()
        if isinstance(entry, TensorEntry)
        and (dtype := plan_dtype(entry, casts.get(kinds.get(entry.key, "other")))) != entry.dtype
    }


def _places(manifest: Manifest, parts: Sequence[Part]) -> set[object]:
    places: set[object] = {(p.kind, p.prefix) for p in parts if p.kind != "other"}
    return places | {_is_flattened(UnchangedTarget(manifest, parts))}


def _is_flattened(target: Target) -> bool:
    return any(target.is_flattened(part) for part in target.of_kind("optimizer"))


def _without_counterpart(side: AlignedCheckpoint, other: AlignedCheckpoint) -> list[str]:
    kinds = {key: part.kind for part in side.manifest.parts for key in part.keys}
    # Safetensors hold a model, and nothing else can be in them.
    weights_only = _is_weights(other.manifest)
    aside = {"other", "optimizer"} if weights_only else {"other"}
    missing = {entry.key for name, entry in side.entries.items() if name not in other.entries}
    found = [key for key in missing if kinds.get(key, "other") in aside]
    if weights_only and len(found) < len(missing):
        # They have each tied parameter once.
        found += missing & side.manifest.ties.keys()
    return sorted(found)


def _side(
    target: Target, folder: Folder, rules: Sequence[RenameRule] = (), *, flat: bool = False
) -> AlignedCheckpoint:
    manifest = target.manifest
    renames = plan_renames(manifest, target.parts, target.move, rules)
    planned: list[PlannedEntry] = []
    for key, entry in manifest.entries.items():
        if key not in renames.paths:
            continue
        path = renames.paths[key]
        if isinstance(entry, BytesEntry):
            names = renames.names.get(key, {})
            planned.append(PlannedValue(join_path(path), path, entry, names))
        else:
            planned.append(PlannedTensor(join_path(path), path, entry, entry.dtype, ()))
    if flat:
        planned = list(flatten_optimizers(target, planned, ("optim",)))
    entries: dict[str, Entry] = {}
    for name, entry in _named(planned, folder):
        # Names that collide are compared as they are.
        entries[entry.key if name in entries else name] = entry
    return AlignedCheckpoint(manifest, folder, entries, renames.names)


def _named(planned: list[PlannedEntry], folder: Folder) -> Iterator[tuple[str, Entry]]:
    for entry in planned:
        source: Entry = entry.source
        if isinstance(entry, PlannedValue) and entry.pick:
            where = f"`{source.key}` in {folder.url!r}"
            value = pick_value(read_value(folder, source, where=where), entry.pick, where=where)
            source = replace(entry.source, inline=InlineValue(value))
        yield entry.key, source
