"""Lightning's ``ModelParallelStrategy``: ``state_dict``, ``optimizer_0`` and a ``meta.pt`` beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.formats.file_names import SIDE_FILE
from fsdp_migrate.checkpoint_convert.manifest.classify import entry_path
from fsdp_migrate.checkpoint_convert.manifest.manifest import InlineValue
from fsdp_migrate.checkpoint_convert.manifest.planned import PlannedFile
from fsdp_migrate.checkpoint_convert.targets.base import Arrangement, Place, Target, without
from fsdp_migrate.checkpoint_convert.targets.schedulers import (
    find_counter,
    find_schedulers,
    lambdas_not_stored,
    lists_not_stored,
)
from fsdp_migrate.findings import Finding, counted, make_finding


if TYPE_CHECKING:
    from collections.abc import Sequence

    from fsdp_migrate.checkpoint_convert.manifest.keys import Path
    from fsdp_migrate.checkpoint_convert.manifest.manifest import Entry, Part
    from fsdp_migrate.checkpoint_convert.manifest.planned import PlannedEntry


META_FILE: Final = SIDE_FILE
# The first Lightning with this strategy, and so the oldest that can have written such a checkpoint.
_VERSION: Final = "2.4.0"


class LightningTarget(Target):
    """What ``Trainer.fit(ckpt_path=...)`` loads under ``ModelParallelStrategy``."""

    framework = "lightning"
    title = "Lightning"
    loader = "Lightning's Trainer"
    nested_only = True

    def place(self, part: Part) -> Place | None:
        """Return where a part goes, or None where the framework has no place for it."""
        if part.kind == "model":
            return Place(("state_dict",))
        if part.kind == "optimizer":
            return Place((f"optimizer_{self.number(part)}",))
        return Place(part.prefix) if self.manifest.framework == "lightning" else None

    def refusals(self) -> list[Finding]:
        """Return the reasons why this source cannot be written for the framework."""
        return [*super().refusals(), *self.one_only("model"), *self._others_meta_file()]

    def _others_meta_file(self) -> list[Finding]:
        """Return the refusal of a file of Fabric's or a script's that stands where the Trainer's would."""
        if META_FILE not in self.manifest.extra_files or self.manifest.framework == "lightning":
            return []
        text = (
            "Fabric's `fabric.save`, or a script, wrote it: it lacks what Lightning's Trainer reads there, "
            "such as `pytorch-lightning_version`."
        )
        hint = (
            "For `fabric.load`, or the script, leave `--to` out: names stay as they are. For the Trainer "
            f"convert a copy of the folder without `{META_FILE}`: one is made then, with epoch and step at 0."
        )
        return [make_finding("FM281", META_FILE, text, hint)]

    def arrange(self, entries: Sequence[PlannedEntry]) -> Arrangement:
        """Put what is neither model nor optimizer into ``meta.pt``."""
        # The Trainer's own folder, whose file comes along as it is.
        if META_FILE in self.manifest.extra_files:
            return Arrangement(tuple(entries))
        if self.manifest.framework == "lightning":
            keys = [key for part in self.of_kind("other") for key in part.keys]
            # By the new names: a callback's state may hold weights by the names that FSDP1 showed.
            named = {entry.source.key: entry.path for entry in entries}
            found_at = [(key, self.manifest.entries[key]) for key in keys]
            leaves = [(named.get(key) or entry_path(entry), entry) for key, entry in found_at]
            file = PlannedFile(META_FILE, tuple(leaves))
            found = make_finding(
                "FM250", META_FILE, f"{counted(len(leaves), 'entry', 'entries')} of Lightning's Trainer."
            )
            return Arrangement(without(entries, set(keys)), (file,), findings=(found,))
        return self._made_up(entries)

    def _made_up(self, entries: Sequence[PlannedEntry]) -> Arrangement:
        """Make the least that Lightning needs, from what another framework kept."""
        schedulers = find_schedulers(self.manifest, self.parts)
        leaves: list[tuple[Path, Entry | InlineValue]] = [
            (("pytorch-lightning_version",), InlineValue(_VERSION))
        ]
        counters = {name: find_counter(self.manifest, name) for name in ("epoch", "global_step")}
        leaves += [((name,), entry or InlineValue(0)) for name, entry in counters.items()]
        moved: set[str] = set()
        # Lightning asks for `lr_schedulers` even if there are none, and no leaf's path tells of the list.
        lists: list[Path] = [] if schedulers else [("lr_schedulers",)]
        for number, scheduler in enumerate(schedulers):
            head = ("lr_schedulers", number)
            leaves += [((*head, *path), entry) for path, entry in scheduler.items()]
            leaves += [((*head, *path), InlineValue({})) for path in lambdas_not_stored(scheduler)]
            lists += [(*head, *path) for path in lists_not_stored(scheduler)]
            moved |= {entry.key for entry in scheduler.values()}
        unknown = [name for name, entry in counters.items() if entry is None]
        text = f"{counted(len(schedulers), 'scheduler')}, and the numbers of epochs and steps"
        text += f"; the source does not say {' and '.join(unknown)}, so they start at 0." if unknown else "."
        hint = "Lightning's loops count from zero: set `max_steps` or `max_epochs` for what is left."
        found = make_finding("FM256", META_FILE, text, hint)
        file = PlannedFile(META_FILE, tuple(leaves), tuple(lists))
        return Arrangement(without(entries, moved), (file,), findings=(found,))
