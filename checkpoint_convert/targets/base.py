"""What a target is: where a framework looks for each part of a checkpoint, and for what beside the data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final

from fsdp_migrate.checkpoint_convert.manifest.classify import entry_path, is_flattened
from fsdp_migrate.checkpoint_convert.manifest.manifest import BytesEntry
from fsdp_migrate.checkpoint_convert.manifest.options import OutputOptions
from fsdp_migrate.findings import Finding, make_finding


if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from fsdp_migrate.checkpoint_convert.manifest.keys import Path
    from fsdp_migrate.checkpoint_convert.manifest.manifest import Entry, Framework, Manifest, Part
    from fsdp_migrate.checkpoint_convert.manifest.planned import PlannedEntry, PlannedFile


_GROUPS: Final = "param_groups"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a part goes: its path, the folder of the output, and the number of its first parameter group."""

    path: Path
    folder: str = ""
    first_group: int = 0


@dataclass(frozen=True, slots=True)
class Arrangement:
    """What an output holds: the entries of its distributed checkpoints, and other files."""

    entries: tuple[PlannedEntry, ...]
    files: tuple[PlannedFile, ...] = ()
    findings: tuple[Finding, ...] = ()


@dataclass
class Target:
    """Where a framework looks for each part; subclasses say what is special about theirs.

    Attributes:
        manifest: The source.
        parts: Its parts that are wanted.
        options: What the user says about the output.
        framework: The framework, by its word.
        title: What it is called, for people.
        loader: What of the framework loads a checkpoint by itself; empty where the user's code does.
    """

    manifest: Manifest
    parts: Sequence[Part]
    options: OutputOptions = field(default_factory=OutputOptions)

    framework: ClassVar[Framework] = "torch"
    title: ClassVar[str] = "plain torch"
    loader: ClassVar[str] = ""
    is_distributed: ClassVar[bool] = True
    nested_only: ClassVar[bool] = False
    models_only: ClassVar[bool] = False

    def place(self, part: Part) -> Place | None:
        """Return where a part goes, or None where the framework has no place for it."""
        raise NotImplementedError

    def folder(self, part: Part) -> str:
        """Return the folder of the output in which a part lies."""
        place = self.place(part)
        return place.folder if place is not None else self.rest_folder

    @property
    def rest_folder(self) -> str:
        """Return the folder for what the framework has no place for."""
        return ""

    def move(self, part: Part, path: Path) -> Path:
        """Return the path of an entry of a part in the output."""
        place = self.place(part)
        if place is None:
            return path
        below = path[len(part.prefix) :]
        if place.first_group and len(below) > 1 and below[0] == _GROUPS and isinstance(below[1], int):
            below = (below[0], below[1] + place.first_group, *below[2:])
        return place.path + below

    def refusals(self) -> list[Finding]:
        """Return the reasons why this source cannot be written for the framework."""
        if not self.nested_only:
            return []
        flattened = [part for part in self.of_kind("optimizer") if self.is_flattened(part)]
        return [
            make_finding(
                "FM252",
                part.name,
                f"it was saved with `flatten_optimizer_state_dict=True`, and {self.framework} looks for "
                "parameter groups, and such an optimizer has none.",
                "Convert it to 'torch' or 'torchtitan', or leave the optimizer out with "
                "`weights_only` (--weights-only).",
            )
            for part in flattened
        ]

    def carries(self, name: str) -> bool:
        """Tell whether another file of the source comes along.

        Data files that no entry refers to are of another save.
        """
        return not name.endswith(".distcp")

    def lacks(self, beside: Collection[str]) -> list[Finding]:
        """Return what the output needs and has not, by the names of the user's files that come along."""
        del beside
        return []

    def arrange(self, entries: Sequence[PlannedEntry]) -> Arrangement:
        """Decide what the output holds, from the entries under their new names."""
        return Arrangement(tuple(entries))

    def of_kind(self, kind: str) -> list[Part]:
        """Return the parts of a kind, in the order of the source."""
        return [part for part in self.parts if part.kind == kind]

    def number(self, part: Part) -> int:
        """Return which of the parts of its kind a part is."""
        return self.of_kind(part.kind).index(part)

    def is_flattened(self, part: Part) -> bool:
        """Tell whether an optimizer was saved with ``flatten_optimizer_state_dict``."""
        return any(is_flattened(part, entry_path(self.manifest.entries[key])) for key in part.keys)

    def one_only(self, kind: str) -> list[Finding]:
        """Return the refusal of several parts of a kind, where the framework has one place."""
        found = self.of_kind(kind)
        if len(found) < 2:
            return []
        names = ", ".join(f"`{part.name}`" for part in found)
        return [
            make_finding(
                "FM251",
                self.framework,
                f"the source holds {len(found)} {kind}s ({names}), and {self.framework} loads one from a "
                "checkpoint.",
                "Convert to 'torch', which keeps all of them.",
            )
        ]

    def without_place(self) -> list[Part]:
        """Return the parts that the framework has no place for."""
        return [part for part in self.parts if self.place(part) is None]


class UnchangedTarget(Target):
    """The framework of the source, whose parts are where they belong."""

    def place(self, part: Part) -> Place:
        """Return where a part is."""
        return Place(part.prefix)


def without(entries: Sequence[PlannedEntry], keys: set[str]) -> tuple[PlannedEntry, ...]:
    """Return the entries but for those of some keys of the source."""
    return tuple(entry for entry in entries if entry.source.key not in keys)


def without_empty(entries: Sequence[PlannedEntry]) -> tuple[PlannedEntry, ...]:
    """Return the entries but for empty mappings, which torch.distributed.checkpoint leaves out.

    Where the state to load has such a mapping too, torch from 2.4 takes an entry of its name for the sign of
    an older checkpoint, and looks for `param_groups` as one value: ``DefaultLoadPlanner`` of 2.7.
    """
    return without(entries, {entry.source.key for entry in entries if is_empty(entry.source)})


def is_empty(entry: Entry) -> bool:
    """Tell whether an entry is an empty mapping that was found in a file."""
    return isinstance(entry, BytesEntry) and entry.inline is not None and entry.inline.value == {}
