"""Plain torch: what ``get_state_dict``, ``dcp.load`` and ``set_state_dict`` expect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.formats.file_names import SIDE_FILE, holds_side_parts
from fsdp_migrate.checkpoint_convert.manifest.classify import entry_path
from fsdp_migrate.checkpoint_convert.manifest.keys import strip_wrappers
from fsdp_migrate.checkpoint_convert.manifest.planned import PlannedFile
from fsdp_migrate.checkpoint_convert.targets.base import Arrangement, Place, Target, UnchangedTarget
from fsdp_migrate.findings import Finding, counted, make_finding


if TYPE_CHECKING:
    from collections.abc import Sequence

    from fsdp_migrate.checkpoint_convert.manifest.manifest import Manifest, Part
    from fsdp_migrate.checkpoint_convert.manifest.planned import PlannedEntry


_MODEL: Final = ("model",)
_OPTIMIZER: Final = ("optim",)


class TorchTarget(Target):
    """One checkpoint with ``model`` and ``optim``; several models, and their optimizers, keep their names.

    Several optimizers become one, as ``get_state_dict(model, [one, other])`` makes them: the groups of the
    second follow those of the first.
    """

    framework = "torch"

    def place(self, part: Part) -> Place | None:
        """Return where a part goes, or None where the framework has no place for it."""
        if part.kind == "model":
            return Place(_MODEL) if len(self.of_kind("model")) == 1 else Place(part.prefix)
        if part.kind == "optimizer" and len(self.of_kind("model")) > 1:
            return Place(part.prefix)
        if part.kind == "optimizer":
            before = self.of_kind("optimizer")[: self.number(part)]
            return Place(_OPTIMIZER, first_group=sum(count_groups(one, self.manifest) for one in before))
        return None

    def refusals(self) -> list[Finding]:
        """Return the reasons why this source cannot be written for the framework."""
        optimizers = self.of_kind("optimizer")
        whole = [part for part in optimizers if has_whole_groups(part, self.manifest)]
        if len(optimizers) < 2 or len(self.of_kind("model")) > 1 or not whole:
            return []
        return [
            make_finding(
                "FM251",
                "torch",
                f"{counted(len(optimizers), 'optimizer')} would become one, and the groups of "
                f"`{whole[0].name}` are stored as one value, as torch before 2.4 does.",
                "Convert it to 'accelerate', which keeps them apart, or with "
                "`weights_only` (--weights-only).",
            )
        ]


class UnchangedTorch(UnchangedTarget):
    """Plain torch that wrote the source, or Fabric: every part is where its owner looks for it."""

    def arrange(self, entries: Sequence[PlannedEntry]) -> Arrangement:
        """Write what a script reads whole once more, where FSDP1's names in it are new ones.

        Of one file that is the file, for ``torch.load`` and ``fabric.load``; of Fabric's folder ``meta.pt``.
        """
        manifest = self.manifest
        beside = {key for part in self.of_kind("other") for key in part.keys}
        is_wrapped = any(strip_wrappers(key) != key for key in beside)
        if not is_wrapped or not holds_side_parts(manifest.layout, manifest.files):
            return Arrangement(tuple(entries))
        is_file = manifest.layout == "file"
        name = next(iter(manifest.files)) if is_file else SIDE_FILE
        wanted = (entry for entry in entries if is_file or entry.source.key in beside)
        leaves = [(entry.path or entry_path(entry.source), entry) for entry in wanted]
        return Arrangement(tuple(entries), (PlannedFile(name, tuple(leaves)),))


def count_groups(part: Part, manifest: Manifest) -> int:
    """Return how many parameter groups an optimizer has."""
    start = len(part.prefix)
    numbers = {
        path[start + 1]
        for key in part.keys
        if len(path := entry_path(manifest.entries[key])) > start + 1
        and path[start] == "param_groups"
        and isinstance(path[start + 1], int)
    }
    return len(numbers)


def has_whole_groups(part: Part, manifest: Manifest) -> bool:
    """Tell whether all groups are stored as one value, as torch before 2.4 does."""
    start = len(part.prefix)
    return any(entry_path(manifest.entries[key])[start:] == ("param_groups",) for key in part.keys)
