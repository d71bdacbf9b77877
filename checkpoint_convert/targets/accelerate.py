"""Accelerate and the HF Trainer: a distributed checkpoint per model and per optimizer, in folders beside.

The layout is that of ``accelerate.utils.save_fsdp_model`` and ``save_fsdp_optimizer``; with an FSDP2 plugin
it is loaded by ``load_fsdp_model`` and ``load_fsdp_optimizer``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.manifest.planned import PlannedFile
from fsdp_migrate.checkpoint_convert.targets.base import Arrangement, Place, Target, without
from fsdp_migrate.checkpoint_convert.targets.schedulers import find_schedulers
from fsdp_migrate.findings import counted, make_finding


if TYPE_CHECKING:
    from collections.abc import Sequence

    from fsdp_migrate.checkpoint_convert.manifest.manifest import Part
    from fsdp_migrate.checkpoint_convert.manifest.planned import PlannedEntry


_MODEL: Final = "pytorch_model_fsdp_{}"
_OPTIMIZER: Final = "optimizer_{}"
_REST: Final = "other_0"


class AccelerateTarget(Target):
    """What ``Accelerator.load_state`` and the HF Trainer load under an FSDP2 plugin with sharded states."""

    stack = "accelerate"
    nested_only = True

    def place(self, part: Part) -> Place | None:
        """Return where a part goes, or None where the stack has no place for it."""
        if part.kind == "model":
            return Place(("model",), _MODEL.format(self.number(part)))
        if part.kind == "optimizer":
            return Place(("optimizer",), _OPTIMIZER.format(self.number(part)))
        return None

    @property
    def rest_folder(self) -> str:
        """Return the folder for what the stack has no place for: a distributed checkpoint of its own."""
        return _REST

    def arrange(self, entries: Sequence[PlannedEntry]) -> Arrangement:
        """Put schedulers into the files in which Accelerate keeps them."""
        files: list[PlannedFile] = []
        for number, scheduler in enumerate(find_schedulers(self.manifest, self.parts)):
            name = f"scheduler_{number}.bin" if number else "scheduler.bin"
            if name not in self.manifest.extra_files:
                files.append(PlannedFile(name, tuple(scheduler.items())))
        moved = {entry.key for file in files for entry in file.sources}
        found = [
            make_finding(
                "FM250", file.name, f"{counted(len(file.leaves), 'entry', 'entries')} of a scheduler."
            )
            for file in files
        ]
        return Arrangement(without(entries, moved), tuple(files), findings=tuple(found))
