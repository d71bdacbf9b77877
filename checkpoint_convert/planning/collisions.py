"""Entries that would get one name, and what makes them meet."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.manifest.keys import find_collisions, join_path
from fsdp_migrate.checkpoint_convert.planning.renames import Renames, plan_renames
from fsdp_migrate.findings import Finding, listed, make_finding


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fsdp_migrate.checkpoint_convert.manifest.planned import PlannedEntry
    from fsdp_migrate.checkpoint_convert.targets.base import Target


_SHOWN: Final = 3


def collision_findings(entries: Sequence[PlannedEntry], renames: Renames, target: Target) -> list[Finding]:
    """Return a finding for each name that several entries, or several names inside one, would get.

    Where they meet only because of the renames that were asked for, one finding says so for all of them.

    Args:
        entries: What is planned, under the new names.
        renames: Where those came from.
        target: For whom, and with which options.
    """
    collisions = _entry_collisions(entries)
    inner = [
        (key, new, olds)
        for key, names in renames.names.items()
        for new, olds in find_collisions(names).items()
    ]
    if (collisions or inner) and _are_asked(target):
        return [_asked_finding(collisions or {new: olds for _, new, olds in inner})]
    return [
        *(
            make_finding(
                "FM221",
                new,
                f"{_both(olds)} would both be called `{new}`.",
                "Save the checkpoint again with one of them left out.",
            )
            for new, olds in collisions.items()
        ),
        *(make_finding("FM221", key, f"{_both(olds)} would both be `{new}`.") for key, new, olds in inner),
    ]


def _entry_collisions(entries: Sequence[PlannedEntry]) -> dict[str, list[str]]:
    if len({entry.folder for entry in entries}) <= 1 and len({e.key for e in entries}) == len(entries):
        return {}
    olds: defaultdict[str, list[str]] = defaultdict(list)
    for entry in entries:
        olds[f"{entry.folder}/{entry.key}".lstrip("/")].append(entry.source.key)
    if len(olds) == len(entries):
        return {}
    return {new: names for new, names in olds.items() if len(names) > 1}


def _are_asked(target: Target) -> bool:
    """Tell whether nothing would meet if no renames had been asked for."""
    if not target.options.rules:
        return False
    plain = plan_renames(target.manifest, target.parts, target.move)
    places = {join_path(path) for path in plain.paths.values()}
    return len(places) == len(plain.paths) and not any(map(find_collisions, plain.names.values()))


def _asked_finding(collisions: Mapping[str, Sequence[str]]) -> Finding:
    names = (f"{_both(olds)} would be `{new}`" for new, olds in collisions.items())
    shown = listed(names, _SHOWN, between="; ")
    return make_finding(
        "FM221",
        next(iter(collisions)),
        f"`renames` (--rename) would give one name to several entries: {shown}.",
        "Change the rename, so that names stay apart.",
    )


def _both(olds: Sequence[str]) -> str:
    return listed((f"`{old}`" for old in olds), _SHOWN, between=" and ")
