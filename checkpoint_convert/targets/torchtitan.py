"""torchtitan: parameters at the root, and an optimizer flattened by parameter.

``torchtitan/components/checkpoint.py`` saves ``{**model, "optimizer": ..., "lr_scheduler": ..., "dataloader":
..., "train_state": ...}``, the optimizer by ``get_optimizer_state_dict(flatten_optimizer_state_dict=True)``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.manifest.classify import entry_path
from fsdp_migrate.checkpoint_convert.manifest.keys import join_path
from fsdp_migrate.checkpoint_convert.manifest.param_group_defaults import NEWER, lacks_newer, value_of_newer
from fsdp_migrate.checkpoint_convert.manifest.planned import PlannedEntry, PlannedValue
from fsdp_migrate.checkpoint_convert.targets.base import Arrangement, Place, Target
from fsdp_migrate.checkpoint_convert.targets.schedulers import find_schedulers
from fsdp_migrate.checkpoint_convert.targets.torch import count_groups
from fsdp_migrate.findings import Finding, make_finding


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fsdp_migrate.checkpoint_convert.manifest.keys import Path
    from fsdp_migrate.checkpoint_convert.manifest.manifest import NameList, Part


_OPTIMIZER: Final = "optimizer"
_SCHEDULER: Final = "lr_scheduler"
_KEPT: Final = ("dataloader", "train_state", _SCHEDULER)
_GROUPS: Final = "param_groups"
_PARAMS: Final = "params"


class TorchtitanTarget(Target):
    """One checkpoint whose model is at the root."""

    framework = "torchtitan"
    title = "torchtitan"
    loader = "torchtitan"

    def place(self, part: Part) -> Place | None:
        """Return where a part goes, or None where the framework has no place for it."""
        if part.kind == "model":
            return Place(())
        if part.kind == "optimizer":
            before = self.of_kind("optimizer")[: self.number(part)]
            return Place((_OPTIMIZER,), first_group=sum(count_groups(one, self.manifest) for one in before))
        return Place(part.prefix) if part.prefix[:1] and part.prefix[0] in _KEPT else None

    def refusals(self) -> list[Finding]:
        """Return the reasons why this source cannot be written for the framework."""
        optimizer_keys = {key for part in self.of_kind("optimizer") for key in part.keys}
        unread = [n for n in self.manifest.name_lists if n.names is None and n.key in optimizer_keys]
        return self.one_only("model") + [
            make_finding(
                "FM252",
                names.key,
                f"it asks for `{names.reason}`, which is not on the list of what may be read, and parameter "
                "groups have to be divided by parameter.",
            )
            for names in unread
        ]

    def arrange(self, entries: Sequence[PlannedEntry]) -> Arrangement:
        """Flatten optimizers: the state and the settings of each parameter under its name."""
        nested = [part for part in self.of_kind("optimizer") if not self.is_flattened(part)]
        found = flatten_optimizers(self, entries, (_OPTIMIZER,))
        schedulers = find_schedulers(self.manifest, self.parts)
        places = {e.key: path for path, e in schedulers[0].items()} if len(schedulers) == 1 else {}
        moved = [
            _at(entry, (_SCHEDULER, *places[entry.source.key])) if entry.source.key in places else entry
            for entry in found
        ]
        return Arrangement(tuple(moved), findings=tuple(_findings(nested)))


def flatten_optimizers(target: Target, entries: Sequence[PlannedEntry], place: Path) -> list[PlannedEntry]:
    """Return entries with the optimizers at ``place`` as ``flatten_optimizer_state_dict=True`` saves them."""
    nested = [part for part in target.of_kind("optimizer") if not target.is_flattened(part)]
    own = {key for part in nested for key in part.keys}
    lists = {names.key: names for names in target.manifest.name_lists}
    flattener = _Flattener(nested, entries, lists, place)
    found: list[PlannedEntry] = []
    for entry in entries:
        found += flattener.flatten(entry) if entry.source.key in own else [entry]
    return found


class _Flattener:
    """Does what torch's ``_flatten_optim_state_dict`` does, to planned entries."""

    def __init__(
        self,
        parts: Sequence[Part],
        entries: Sequence[PlannedEntry],
        lists: Mapping[str, NameList],
        place: Path,
    ) -> None:
        self._place = place
        self._lists = lists
        self._part_of = {key: part for part in parts for key in part.keys}
        # The parameters of each group, by the part and the number that it has in the source.
        self._groups: dict[tuple[Path, object], list[str]] = {}
        for entry in entries:
            part = self._part_of.get(entry.source.key)
            if part is not None and isinstance(entry, PlannedValue):
                self._find_groups(part, entry)

    def _find_groups(self, part: Part, entry: PlannedValue) -> None:
        found = self._lists.get(entry.source.key)
        below = entry_path(entry.source)[len(part.prefix) :]
        if found is None or below[0] != _GROUPS:
            return
        if len(below) == 1:
            for number, group in enumerate(found.groups):
                self._groups[part.prefix, number] = [entry.names.get(n, n) for n in group.names]
        elif below[-1] == _PARAMS:
            self._groups[part.prefix, below[1]] = [entry.names.get(n, n) for n in found.names or ()]

    def flatten(self, entry: PlannedEntry) -> Iterator[PlannedEntry]:
        """Yield what an entry of an optimizer becomes."""
        part = self._part_of[entry.source.key]
        source = entry_path(entry.source)[len(part.prefix) :]
        below = (entry.path or entry_path(entry.source))[len(self._place) :]
        if source == (_GROUPS,) and isinstance(entry, PlannedValue):
            yield from self._whole(part, entry)
        elif source[0] == _GROUPS and len(source) > 2:
            for name in self._groups.get((part.prefix, source[1]), ()) if source[2] != _PARAMS else ():
                yield _at(entry, (*self._place, f"{_GROUPS}.{name}.{source[2]}", *source[3:]))
        else:
            yield _at(entry, (*self._place, join_path(below)))

    def _whole(self, part: Part, entry: PlannedValue) -> Iterator[PlannedEntry]:
        for number, group in enumerate(self._lists[entry.source.key].groups):
            for name in self._groups[part.prefix, number]:
                for field in group.fields:
                    if field != _PARAMS:
                        # Before torch 2.4 all groups are one value, of which this setting is a part.
                        picked = replace(entry, pick=(number, field))
                        yield _at(picked, (*self._place, f"{_GROUPS}.{name}.{field}"))
                if lacks_newer(group.fields):
                    source = replace(entry.source, **value_of_newer(entry.source))
                    added = replace(entry, source=source, names={})
                    yield _at(added, (*self._place, f"{_GROUPS}.{name}.{NEWER}"))


def _at(entry: PlannedEntry, path: Path) -> PlannedEntry:
    """Return an entry under another path; names inside it are only replaced where it stays a list of them."""
    recorded = None if entry.path is None else path
    return replace(entry, key=join_path(path), path=recorded)


def _findings(nested: Sequence[Part]) -> Iterator[Finding]:
    for part in nested:
        yield make_finding(
            "FM253",
            part.name,
            "each parameter has the settings of its group.",
            "Name what the source does not have in torchtitan's `checkpoint.exclude_from_loading`, such as "
            "`dataloader`, `lr_scheduler` and `train_state`.",
        )
