"""What a map of parameters makes of an optimizer's groups: the lists of names in them. Pure."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from fsdp_migrate.checkpoint_convert.manifest.classify import entry_path
from fsdp_migrate.checkpoint_convert.manifest.manifest import BytesEntry, GroupOutline, InlineValue, NameList
from fsdp_migrate.checkpoint_convert.planning.renames import clean_name
from fsdp_migrate.findings import Finding, make_finding, named


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fsdp_migrate.checkpoint_convert.manifest.manifest import Manifest, Part
    from fsdp_migrate.checkpoint_convert.planning.mapped_names import Joint, NewNames


_GROUPS: Final = "param_groups"
_PARAMS: Final = "params"
_LABELS: Final = "param_names"
# What only torch.optim.Muon and its kin have among a group's settings.
_OF_MUON: Final = frozenset({"ns_steps", "ns_coefficients"})
_WITHOUT: Final = "Leave the optimizer out: `without_optimizer` (--without-optimizer)."


@dataclass
class MappedLists:
    """The lists of names of one optimizer under the new names.

    Attributes:
        entries: What takes the place of an entry that holds one, by its key.
        lists: What these hold, by the same keys.
        findings: Why it cannot be done.
    """

    entries: dict[str, BytesEntry] = field(default_factory=dict)
    lists: dict[str, NameList] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


def map_lists(manifest: Manifest, part: Part, found: NewNames, *, module: bool) -> MappedLists:
    """Put the new names into an optimizer's lists: what was put together stands once, where its first was.

    Args:
        manifest: The checkpoint.
        part: The optimizer; any other part has no lists.
        found: What becomes of which name.
        module: Whether all names of the part begin with ``module.``.
    """
    result = MappedLists()
    keys = set(part.keys)
    lists = [one for one in manifest.name_lists if one.key in keys]
    change = _Change(found, module)
    result.findings += _refusals(manifest, part, lists, change)
    if result.findings:
        return result
    beside = {_group_of(manifest, part, one): one for one in lists if _last(manifest, one) == _PARAMS}
    for one in lists:
        entry = manifest.entries[one.key]
        assert isinstance(entry, BytesEntry)
        if one.value is not None:
            value, new = _whole(one, change)
        else:
            params = beside.get(_group_of(manifest, part, one), one).names or ()
            is_labels = _last(manifest, one) == _LABELS
            value = change.labels(params, one.labels) if is_labels else change.names(one.names or ())
            new = replace(one, labels=tuple(value)) if is_labels else replace(one, names=tuple(value))
        if new != one:
            result.entries[one.key] = replace(entry, stored=replace_place(entry), inline=InlineValue(value))
            result.lists[one.key] = new
    return result


def replace_place(entry: BytesEntry) -> Any:
    """Return the place of a value that is made here: in no file, but beside the one that it replaces."""
    return entry.stored._replace(offset=0, length=0)


class _Change:
    """What becomes of names as they stand in lists."""

    def __init__(self, found: NewNames, module: bool) -> None:
        self._found = found
        self._module = module

    def joint(self, name: str) -> Joint | None:
        """Return what a name is put together with."""
        return self._found.joint_of.get(clean_name(name, module=self._module))

    def new(self, name: str) -> tuple[str, ...]:
        """Return the new names of one; it is as it was where the map does not change it."""
        clean = clean_name(name, module=self._module)
        joint = self._found.joint_of.get(clean)
        if joint is None and clean not in self._found.renamed:
            return (name,)
        new = (self._found.renamed[clean],) if joint is None else joint.expanded or joint.names
        return tuple(f"module.{one}" for one in new) if self._module else new

    def names(self, names: Sequence[str]) -> list[str]:
        """Return a list with the new names, each once."""
        return list(dict.fromkeys(new for name in names for new in self.new(name)))

    def labels(self, params: Sequence[str], labels: Sequence[str]) -> list[str]:
        """Return what a caller called the parameters: the new names where these were the names."""
        if len(params) != len(labels):
            return self.names(labels)
        found: dict[str, str] = {}
        for name, label in zip(params, labels, strict=True):
            for new in self.new(name):
                plain = new.removeprefix("module.") if self._module else new
                is_own = label not in (name, clean_name(name, module=self._module))
                found.setdefault(new, label if is_own else plain)
        return list(found.values())


def _whole(one: NameList, change: _Change) -> tuple[list[Any], NameList]:
    """Return all groups, stored as one value, with the new names, and what they hold then."""
    assert one.value is not None
    groups: list[Any] = []
    outlines: list[GroupOutline] = []
    for group in one.value.value if isinstance(one.value.value, list | tuple) else ():
        names = [str(name) for name in group.get(_PARAMS, ())] if isinstance(group, dict) else []
        # A copy: the value is the manifest's too, which a map does not change.
        changed = copy.copy(group)
        if names and change.names(names) != names:
            changed[_PARAMS] = change.names(names)
            if isinstance(group.get(_LABELS), list):
                changed[_LABELS] = change.labels(names, [str(label) for label in group[_LABELS]])
        groups.append(changed)
        if isinstance(group, dict):
            held = tuple(str(name) for name in changed.get(_PARAMS, ()))
            outlines.append(GroupOutline(held, tuple(map(str, group))))
    labels = [str(n) for g in groups if isinstance(g, dict) for n in g.get(_LABELS, ()) if isinstance(n, str)]
    every = tuple(name for outline in outlines for name in outline.names)
    same = every == one.names
    value = one.value if same else InlineValue(groups)
    return groups, replace(
        one, names=every, labels=one.labels if same else tuple(labels), groups=tuple(outlines), value=value
    )


def _refusals(
    manifest: Manifest, part: Part, lists: Sequence[NameList], change: _Change
) -> Iterator[Finding]:
    for one in lists:
        if one.names is None:
            text = (
                f"it asks for `{one.reason}`, which is not on the list of what may be read, and names in it "
                "change."
            )
            yield make_finding("FM224", one.key, text, _WITHOUT)
    groups = list(_groups(manifest, part, lists))
    place = {name: number for number, (names, _) in enumerate(groups) for name in names}
    for number, (names, settings) in enumerate(groups):
        joints = {id(joint): joint for name in names if (joint := change.joint(name)) is not None}
        for joint in joints.values():
            held = {name for name in names if change.joint(name) is joint}
            # All in one group: what they become has one learning rate and one decay.
            if len(held) != len(joint.every):
                yield _apart(joint, held, place, change)
                return
            if settings & _OF_MUON and joint.rule.operations:
                text = (
                    f"parameter group {number} is Muon's, which takes each matrix for itself. What "
                    f"{named(joint.every, 2)} become has other matrices, or three dimensions, so that its "
                    "momentum would not go on as before."
                )
                yield make_finding("FM296", joint.subject, text, _WITHOUT)
                return


def _apart(joint: Joint, held: set[str], place: Mapping[str, int], change: _Change) -> Finding:
    numbers = sorted({number for name, number in place.items() if change.joint(name) is joint})
    known = sum(change.joint(name) is joint for name in place)
    if len(numbers) > 1:
        text = f"{named(sorted(held), 2)} and others that become one parameter are in the groups {numbers}."
        hint = f"Build the optimizer with all of them in one group, and save again. Or: {_WITHOUT}"
    else:
        text = (
            f"the optimizer knows {known} of the {len(joint.every)} parameters that become one, such as "
            f"{named(sorted(held), 2)}: were the others frozen?"
        )
        hint = _WITHOUT
    return make_finding("FM296", joint.subject, text, hint)


def _groups(
    manifest: Manifest, part: Part, lists: Sequence[NameList]
) -> Iterator[tuple[tuple[str, ...], frozenset[str]]]:
    """Yield the names and the settings of each group."""
    fields: dict[object, set[str]] = {}
    for key in part.keys:
        below = entry_path(manifest.entries[key])[len(part.prefix) :]
        if len(below) > 2 and below[0] == _GROUPS:
            fields.setdefault(below[1], set()).add(str(below[2]))
    for one in lists:
        if one.value is not None:
            yield from ((group.names, frozenset(group.fields)) for group in one.groups)
        elif _last(manifest, one) == _PARAMS:
            yield one.names or (), frozenset(fields.get(_group_of(manifest, part, one), ()))


def _group_of(manifest: Manifest, part: Part, one: NameList) -> object:
    below = entry_path(manifest.entries[one.key])[len(part.prefix) :]
    return below[1] if len(below) > 1 else None


def _last(manifest: Manifest, one: NameList) -> object:
    return entry_path(manifest.entries[one.key])[-1]
