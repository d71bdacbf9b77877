"""Settings of parameter groups that a later torch looks for, and an earlier one did not save.

``Adam`` and ``AdamW`` have ``decoupled_weight_decay`` from torch 2.7 on, and ``torch.distributed.checkpoint``
stops at a key that is missing. False is right for both: ``AdamW.__setstate__``, which ``load_state_dict``
calls, sets True whatever was loaded (``torch/optim/adamw.py`` of 2.7 to 2.15).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from fsdp_migrate.checkpoint_convert.manifest.classify import entry_path
from fsdp_migrate.checkpoint_convert.manifest.keys import join_path
from fsdp_migrate.checkpoint_convert.manifest.manifest import BytesEntry, InlineValue, Manifest, Part, Stored


if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from fsdp_migrate.checkpoint_convert.manifest.keys import Path


NEWER: Final = "decoupled_weight_decay"
_OF_ADAM: Final = frozenset({"amsgrad", "betas", "eps", "weight_decay"})
_GROUPS: Final = "param_groups"


def with_newer_settings(manifest: Manifest, parts: Sequence[Part]) -> tuple[Manifest, list[Part]]:
    """Return a manifest and some parts of it with the settings that groups of Adam and AdamW lack.

    Groups that are stored as one value, as torch before 2.4 does, stay as they are: torch loads them whole.
    Where they are taken apart, for torchtitan, it is added there.

    Args:
        manifest: The source; it is not changed.
        parts: Its parts that are wanted.
    """
    added: dict[str, BytesEntry] = {}
    found: list[Part] = []
    for part in parts:
        own = {entry.key: entry for entry in _missing(manifest, part)} if part.kind == "optimizer" else {}
        found.append(replace(part, keys=(*part.keys, *own)))
        added.update(own)
    if not added:
        return manifest, list(parts)
    new = dict(zip(((part.kind, part.prefix) for part in parts), found, strict=True))
    return (
        replace(
            manifest,
            entries={**manifest.entries, **added},
            parts=tuple(new.get((part.kind, part.prefix), part) for part in manifest.parts),
            added=tuple(added),
        ),
        found,
    )


def lacks_newer(fields: Collection[str]) -> bool:
    """Tell whether a group with these settings is one of Adam or AdamW from before torch 2.7.

    Example:
        >>> lacks_newer({"lr", "betas", "eps", "weight_decay", "amsgrad"}), lacks_newer({"lr", "momentum"})
        (True, False)
    """
    return set(fields) >= _OF_ADAM and NEWER not in fields


def value_of_newer(beside: BytesEntry) -> dict[str, Any]:
    """Return the value that is added beside an entry, and its place: in no file, but in the same folder."""
    return {"stored": Stored(beside.stored.file, 0, 0), "inline": InlineValue(False)}


def _missing(manifest: Manifest, part: Part) -> Iterator[BytesEntry]:
    groups: defaultdict[Path, dict[str, str]] = defaultdict(dict)
    for key in part.keys:
        path = entry_path(manifest.entries[key])
        place = _group_of(path[len(part.prefix) :])
        if place is not None:
            groups[path[: len(part.prefix)] + place[0]][place[1]] = key
    for group, fields in groups.items():
        if not lacks_newer(fields):
            continue
        beside = manifest.entries[fields["amsgrad"]]
        if isinstance(beside, BytesEntry):
            # `param_groups.<parameter>` of a flattened optimizer is one name with its settings.
            is_flat = isinstance(group[-1], str)
            path = (*group[:-1], f"{group[-1]}.{NEWER}") if is_flat else (*group, NEWER)
            recorded = None if beside.path is None else path
            yield BytesEntry(join_path(path), recorded, **value_of_newer(beside))


def _group_of(below: Path) -> tuple[Path, str] | None:
    """Return the group of a setting, and its name: ``param_groups, 0, lr`` or ``param_groups.weight.lr``."""
    if len(below) == 3 and below[0] == _GROUPS and isinstance(below[1], int):
        return below[:2], str(below[2])
    if len(below) == 1 and str(below[0]).startswith(f"{_GROUPS}."):
        group, _, name = str(below[0]).rpartition(".")
        return (group,), name
    return None
