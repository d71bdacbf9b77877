"""Accelerate and the HF Trainer: a part per model and per optimizer, in the form that the config asks for.

The layout is that of ``accelerate.utils.save_fsdp_model`` and ``save_fsdp_optimizer``; with an FSDP2 plugin
it is loaded by ``load_fsdp_model`` and ``load_fsdp_optimizer``: under ``SHARDED_STATE_DICT`` from folders
that are distributed checkpoints, under ``FULL_STATE_DICT`` from files of ``torch.save`` with whole tensors.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.manifest.classify import guess_path
from fsdp_migrate.checkpoint_convert.manifest.manifest import InlineValue
from fsdp_migrate.checkpoint_convert.manifest.planned import PlannedFile, PlannedTensor
from fsdp_migrate.checkpoint_convert.storage.model_files import FULL_MODEL
from fsdp_migrate.checkpoint_convert.targets.base import Arrangement, Place, Target, without
from fsdp_migrate.checkpoint_convert.targets.schedulers import (
    find_schedulers,
    lambdas_not_stored,
    lists_not_stored,
)
from fsdp_migrate.findings import counted, make_finding, named


if TYPE_CHECKING:
    from collections.abc import Sequence

    from fsdp_migrate.checkpoint_convert.manifest.keys import Path
    from fsdp_migrate.checkpoint_convert.manifest.manifest import Entry, Manifest, Part
    from fsdp_migrate.checkpoint_convert.manifest.planned import PlannedEntry


_MODEL: Final = "pytorch_model_fsdp_{}"
_OPTIMIZER: Final = "optimizer_{}"
_FULL_OPTIMIZER: Final = "optimizer.bin"
_REST: Final = "other_0"
_STATE: Final = ("state",)


class AccelerateTarget(Target):
    """What ``Accelerator.load_state`` and the HF Trainer load under an FSDP2 plugin."""

    framework = "accelerate"
    title = "Accelerate"
    loader = "`Accelerator.load_state` or the HF Trainer"
    nested_only = True

    @property
    def is_full(self) -> bool:
        """Tell whether whole tensors are wanted, in files."""
        asked = self.options.state_dict_type
        return is_full_form(self.manifest) if asked == "auto" else asked == "full"

    def place(self, part: Part) -> Place | None:
        """Return where a part goes, or None where the framework has no place for it."""
        if part.kind == "other":
            return None
        number = self.number(part)
        if self.is_full:
            name = FULL_MODEL if part.kind == "model" else _FULL_OPTIMIZER
            return Place((part.kind,), name.replace(".bin", f"_{number}.bin") if number else name)
        return Place((part.kind,), (_MODEL if part.kind == "model" else _OPTIMIZER).format(number))

    @property
    def rest_folder(self) -> str:
        """Return the folder for what the framework has no place for: a distributed checkpoint of its own."""
        return _REST

    def carries(self, name: str) -> bool:
        """Tell whether another file of the source comes along: none whose name is needed."""
        return super().carries(name) and name not in self._full_files()

    def arrange(self, entries: Sequence[PlannedEntry]) -> Arrangement:
        """Put schedulers into the files in which Accelerate keeps them, and whole states into theirs."""
        files: list[PlannedFile] = []
        for number, scheduler in enumerate(find_schedulers(self.manifest, self.parts)):
            name = f"scheduler_{number}.bin" if number else "scheduler.bin"
            if name not in self.manifest.extra_files:
                gaps = [(path, InlineValue({})) for path in lambdas_not_stored(scheduler)]
                leaves = (*scheduler.items(), *gaps)
                files.append(PlannedFile(name, leaves, lists_not_stored(scheduler)))
        moved = {entry.key for file in files for entry in file.sources}
        found = [
            make_finding(
                "FM250", file.name, f"{counted(len(file.leaves), 'entry', 'entries')} of a scheduler."
            )
            for file in files
        ]
        full = self._full_files()
        if full:
            files += (_full_file(name, [e for e in entries if e.folder == name]) for name in full)
            moved |= {entry.source.key for entry in entries if entry.folder in full}
            text = f"{named(full, 8)}: whole tensors, which rank 0 reads and sends to the others."
            found.append(make_finding("FM293", "FULL_STATE_DICT", text))
        return Arrangement(without(entries, moved), tuple(files), findings=tuple(found))

    def _full_files(self) -> list[str]:
        """Return the files of the full form, where that is wanted."""
        places = [self.place(part) for part in self.parts] if self.is_full else []
        return [place.folder for place in places if place is not None]


def is_full_form(manifest: Manifest) -> bool:
    """Tell whether a checkpoint was saved by Accelerate in the full form."""
    return any(name.rpartition("/")[2] == FULL_MODEL for name in manifest.files)


def _full_file(name: str, entries: Sequence[PlannedEntry]) -> PlannedFile:
    """Return the file of a model or an optimizer, with the names that torch's setters look for."""
    leaves: list[tuple[Path, Entry | InlineValue | PlannedEntry]] = list(map(_leaf, entries))
    if not name.startswith("pytorch_model") and not any(path[:1] == _STATE for path, _ in leaves):
        # Of an optimizer that has none yet.
        leaves.append((_STATE, InlineValue({})))
    return PlannedFile(name, tuple(leaves))


def _leaf(entry: PlannedEntry) -> tuple[Path, PlannedEntry]:
    # The file is the model or the optimizer itself, without that name above it.
    path = (entry.path or guess_path(entry.key))[1:]
    if not isinstance(entry, PlannedTensor):
        return path, entry
    shape = entry.source.shape
    return path, replace(entry, boxes=(((0,) * len(shape), shape),))
