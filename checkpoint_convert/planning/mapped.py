"""What a map of parameters makes of a checkpoint: another manifest, over the same bytes. Pure."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from fsdp_migrate.checkpoint_convert.manifest.classify import entry_path, parameter_name
from fsdp_migrate.checkpoint_convert.manifest.keys import Path, join_path, strip_module
from fsdp_migrate.checkpoint_convert.manifest.manifest import Entry, Manifest, Mapped, TensorEntry
from fsdp_migrate.checkpoint_convert.planning.mapped_groups import map_lists
from fsdp_migrate.checkpoint_convert.planning.mapped_names import Joint, NewNames, new_names
from fsdp_migrate.checkpoint_convert.planning.mapped_tensors import Joined, join_entries
from fsdp_migrate.checkpoint_convert.planning.refusals import plan_error
from fsdp_migrate.checkpoint_convert.planning.renames import clean_name, drops_module
from fsdp_migrate.findings import Finding, counted, make_finding, named


if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from fsdp_migrate.checkpoint_convert.manifest.boxes import Shape
    from fsdp_migrate.checkpoint_convert.manifest.manifest import Merged, Part, PartKind
    from fsdp_migrate.checkpoint_convert.manifest.options import ModelOutline
    from fsdp_migrate.checkpoint_convert.manifest.parameter_map import ParameterMap


_STATE: Final = "state"


def apply_map(manifest: Manifest, asked: ParameterMap, kinds: Collection[PartKind]) -> Manifest:
    """Return what a map makes of a checkpoint; nothing is read, and chunks stay where they lie.

    Parameters of models and the state of their optimizers are renamed and put together alike. What cannot be
    done is in the findings, as refused; such a manifest is for nothing but its findings.

    Args:
        manifest: The checkpoint.
        asked: The map.
        kinds: The kinds of parts to which it is applied; others are not wanted.

    Raises:
        ConfigError: The map changes nothing.
    """
    parts = [part for part in manifest.parts if part.kind in kinds and part.kind != "other"]
    views = [_look_at(part, manifest) for part in parts]
    found = new_names(asked, (name for view in views for name in view.every))
    work = _Work(manifest, found, _shapes(manifest, views))
    # Models first: their shapes tell what is made of lists of names, too.
    for view in sorted(views, key=lambda view: view.part.kind != "model"):
        work.map_part(view)
    entries = work.entries()
    parts_by_place = {(p.kind, p.prefix): p for p in work.parts()}
    names = _names_by_old(found, work.shapes_of)
    return replace(
        manifest,
        entries=entries,
        parts=tuple(parts_by_place.get((part.kind, part.prefix), part) for part in manifest.parts),
        name_lists=tuple(work.lists.get(one.key, one) for one in manifest.name_lists),
        findings=(*manifest.findings, *work.findings, *_said(asked, found, work)),
        outline=_map_outline(manifest.outline, names, work.shapes_of),
        places={new: manifest.places[old] for new, old in work.old_keys() if old in manifest.places},
        ties=_map_ties(manifest.ties, work),
        mapped=Mapped(asked.text, work.joined, tuple(work.merged), manifest.world_size),
    )


def map_wanted(manifest: Manifest, asked: ParameterMap, left: Sequence[str]) -> Manifest:
    """Return what a map makes of the parts that are wanted.

    Raises:
        PlanError: It cannot be done. What else is wrong would follow from that.
    """
    kinds: tuple[PartKind, ...] = ("model", "optimizer")
    found = apply_map(manifest, asked, [kind for kind in kinds if kind not in left])
    said = found.findings[len(manifest.findings) :]
    if refused := [finding for finding in said if finding.fidelity == "refused"]:
        raise plan_error(manifest, refused)
    return found


@dataclass
class _View:
    """A part, with the clean name of the parameter that each of its entries is of."""

    part: Part
    module: bool
    names: Mapping[str, str]
    listed: tuple[str, ...]

    @property
    def every(self) -> Iterator[str]:
        yield from self.names.values()
        yield from self.listed


def _look_at(part: Part, manifest: Manifest) -> _View:
    keys = set(part.keys)
    lists = [found for found in manifest.name_lists if found.key in keys]
    module = drops_module(part, manifest, lists)
    names = {
        key: clean_name(name, module=module)
        for key in part.keys
        if (name := parameter_name(part, entry_path(manifest.entries[key])))
    }
    listed = tuple(clean_name(name, module=module) for found in lists for name in found.names or ())
    return _View(part, module, names, listed)


def _shapes(manifest: Manifest, views: list[_View]) -> dict[str, Shape]:
    """Return the shape of each parameter that a model has."""
    return {
        name: entry.shape
        for view in views
        if view.part.kind == "model"
        for key, name in view.names.items()
        if isinstance(entry := manifest.entries[key], TensorEntry)
    }


@dataclass
class _Work:
    """The new manifest while it is made."""

    manifest: Manifest
    found: NewNames
    shapes: Mapping[str, Shape]
    made: dict[str, list[Entry]] = field(default_factory=dict)
    """What stands in the place of an entry of the source; nothing where another's place has it."""
    lists: dict[str, Any] = field(default_factory=dict)
    joined: dict[str, tuple[str, ...]] = field(default_factory=dict)
    merged: list[Merged] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    shapes_of: dict[str, Shape] = field(default_factory=dict)
    told: set[int] = field(default_factory=set)

    def map_part(self, view: _View) -> None:
        """Rename and join what one part holds."""
        held: defaultdict[int, defaultdict[tuple[str, ...], dict[str, Entry]]]
        held = defaultdict(lambda: defaultdict(dict))
        joints = {id(joint): joint for joint in self.found.joints}
        for key, name in view.names.items():
            entry = self.manifest.entries[key]
            joint = self.found.joint_of.get(name)
            if joint is not None:
                held[id(joint)][_field(view.part, entry)][name] = entry
            elif name in self.found.renamed:
                self.made[key] = [_moved(view, entry, self.found.renamed[name])]
        for number, fields in held.items():
            self._join(view, joints[number], fields)
        lists = map_lists(self.manifest, view.part, self.found, module=view.module)
        self.findings += lists.findings
        self.lists.update(lists.lists)
        self.made.update({key: [entry] for key, entry in lists.entries.items()})

    def _join(self, view: _View, joint: Joint, fields: Mapping[tuple[str, ...], Mapping[str, Entry]]) -> None:
        """Put together what one part holds of some parameters: their weights, or their state."""
        result = join_entries(joint, fields, self.shapes, is_model=view.part.kind == "model")
        if result.findings:
            # Of several parts the same would be said once more.
            self.findings += result.findings if id(joint) not in self.told else []
            self.told.add(id(joint))
            return
        for members in fields.values():
            self.made.update({entry.key: [] for entry in members.values()})
        for one in result.joined:
            self._put(view, one)

    def _put(self, view: _View, one: Joined) -> None:
        first = one.sources[0]
        entry = _moved(view, one.entry, one.name)
        self.made[first.key].append(entry)
        if one.is_merged:
            if len(one.sources) > 1:
                self.merged.append((entry.key, one.sources))
            return
        self.joined[entry.key] = tuple(source.key for source in one.sources)
        if view.part.kind == "model" and isinstance(entry, TensorEntry):
            self.shapes_of[one.name] = entry.shape

    def entries(self) -> dict[str, Entry]:
        """Return the entries of the new manifest, in the order of the source."""
        every = [entry for key, old in self.manifest.entries.items() for entry in self.made.get(key, [old])]
        found: dict[str, Entry] = {}
        for entry in every:
            if entry.key in found:
                text = "the map would give this name to several entries."
                self.findings.append(
                    make_finding("FM221", entry.key, text, "Change the map, so that names stay apart.")
                )
            found[entry.key] = entry
        return found

    def old_keys(self) -> Iterator[tuple[str, str]]:
        """Yield each new key with the one in whose place it stands."""
        for key in self.manifest.entries:
            if key in self.made:
                yield from ((entry.key, key) for entry in self.made[key])
            else:
                yield key, key

    def parts(self) -> Iterator[Part]:
        """Yield the parts with their new keys."""
        for part in self.manifest.parts:
            keys = [
                entry.key for key in part.keys for entry in self.made.get(key, [self.manifest.entries[key]])
            ]
            yield replace(part, keys=tuple(keys))


def _field(part: Part, entry: Entry) -> tuple[str, ...]:
    """Return what of a parameter an entry of an optimizer is: its state and which, or a setting."""
    below = entry_path(entry)[len(part.prefix) :]
    if part.kind == "model":
        return ()
    if len(below) == 1:
        head, _, rest = str(below[0]).partition(".")
        return (head, rest.rpartition(".")[2])
    return (_STATE, *(str(name) for name in below[2:]))


def _moved(view: _View, entry: Entry, name: str) -> Entry:
    """Return an entry under the name of another parameter; what is in all names of the part stays in it."""
    path, start = entry_path(entry), len(view.part.prefix)
    old = parameter_name(view.part, path) or ""
    if view.module and strip_module(clean_name(old, module=False)) != clean_name(old, module=False):
        name = f"module.{name}"
    below = path[start:]
    if view.part.kind == "model":
        # A model's parameter is one name with dots in it, or a name for each level, as the source has it.
        new: Path = (name,) if len(below) == 1 else tuple(name.split("."))
    elif len(below) == 1:
        head, _, rest = str(below[0]).partition(".")
        new = (f"{head}.{name}.{rest.rpartition('.')[2]}",)
    else:
        new = (below[0], name, *below[2:])
    moved = (*path[:start], *new)
    changes: dict[str, Any] = {"key": join_path(moved), "path": None if entry.path is None else moved}
    return replace(entry, **changes)


def _names_by_old(found: NewNames, shapes: Mapping[str, Shape]) -> dict[str, tuple[str, ...]]:
    """Return the new names of each parameter that gets others."""
    names: dict[str, tuple[str, ...]] = {old: (new,) for old, new in found.renamed.items()}
    for joint in found.joints:
        new = tuple(name for name in joint.expanded if name in shapes)
        names.update(dict.fromkeys(joint.every, new))
    return names


def _map_ties(ties: Mapping[str, str], work: _Work) -> dict[str, str]:
    """Return the ties under their new names; what was put together is a tensor of its own."""
    new = {old: key for key, old in work.old_keys() if key not in work.joined}
    gone = {key for keys in work.joined.values() for key in keys}
    return {
        new.get(alias, alias): new.get(first, first)
        for alias, first in ties.items()
        if alias not in gone and first not in gone
    }


def _map_outline(
    outline: ModelOutline | None, names: Mapping[str, tuple[str, ...]], shapes: Mapping[str, Shape]
) -> ModelOutline | None:
    """Return the model that was given as the map changes it; one that has the new names already stays."""
    if outline is None or not names.keys() & outline.parameters.keys():
        return outline

    def mapped(every: Collection[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(new for name in every for new in names.get(name, (name,))))

    def keyed(given: Mapping[str, Any]) -> dict[str, Any]:
        return {new: value for name, value in given.items() for new in names.get(name, (name,))}

    def tied(given: Mapping[str, str]) -> dict[str, str]:
        pairs = ((mapped([alias]), mapped([first])) for alias, first in given.items())
        return {one[0]: other[0] for one, other in pairs if len(one) == len(other) == 1 and one != other}

    return replace(
        outline,
        parameters={name: shapes.get(name, shape) for name, shape in keyed(outline.parameters).items()},
        # Only reading a source needs these, and that is done.
        units=(),
        numbered=(),
        aliases=tied(outline.aliases),
        apart=tied(outline.apart),
        buffers=None if outline.buffers is None else keyed(outline.buffers),
        dtypes=keyed(outline.dtypes),
        trainable=None if outline.trainable is None else mapped(outline.trainable),
        groups=None if outline.groups is None else tuple(map(mapped, outline.groups)),
    )


def _said(asked: ParameterMap, found: NewNames, work: _Work) -> Iterator[Finding]:
    """Say what became of the parameters."""
    if work.findings:
        return
    made = [name for joint in found.joints for name in joint.expanded or joint.names]
    texts = []
    if made:
        count = sum(len(joint.every) for joint in found.joints)
        shape = work.shapes_of.get(made[0])
        of_shape = "" if shape is None else f", the first of shape {list(shape)}"
        texts.append(f"{counted(count, 'parameter')} became {len(made)}: {named(made, 3)}{of_shape}")
    if found.renamed:
        old, new = next(iter(found.renamed.items()))
        texts.append(f"{counted(len(found.renamed), 'name')} changed, such as `{old}`: now `{new}`")
    yield make_finding("FM294", asked.name, f"{'; '.join(texts)}.")
