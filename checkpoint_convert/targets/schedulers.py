"""Learning-rate schedulers and step counters: where each stack keeps them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.parts import entry_path
from fsdp_migrate.checkpoint_convert.state_tree import NumberKey


if TYPE_CHECKING:
    from collections.abc import Sequence

    from fsdp_migrate.checkpoint_convert.keys import Path
    from fsdp_migrate.checkpoint_convert.metadata import Entry, Manifest, Part


_NAMES: Final = frozenset({"lr_scheduler", "lr_schedulers", "scheduler", "schedulers"})
_MILESTONES: Final = "milestones"
_STAMP: Final = ("state", "timestamp", "Timestamp")
_COUNTERS: Final[dict[str, tuple[Path, ...]]] = {
    "epoch": (("epoch",), (*_STAMP, "epoch")),
    "global_step": (("global_step",), (*_STAMP, "batch")),
}

Scheduler = dict["Path", "Entry"]
"""The state of a scheduler: its entries by their paths in it."""


def find_schedulers(manifest: Manifest, parts: Sequence[Part]) -> list[Scheduler]:
    """Return the state of every scheduler of a source.

    Composer keeps them by class (``state.schedulers.LambdaLR.last_epoch``), Lightning in a list
    (``lr_schedulers.0.last_epoch``), and most others by themselves (``lr_scheduler.last_epoch``).
    """
    found: dict[Path, Scheduler] = {}
    for part in parts:
        if part.kind != "other" or not part.prefix or part.prefix[-1] not in _NAMES:
            continue
        start = len(part.prefix)
        paths = {key: entry_path(manifest.entries[key]) for key in part.keys}
        # Every state of torch's schedulers has these two, so that they tell how deep it lies.
        depths = {len(path) - start for path in paths.values() if path[-1] in ("last_epoch", "_step_count")}
        if len(depths) != 1 or not depths <= {1, 2}:
            continue
        depth = start + depths.pop() - 1
        for key, path in paths.items():
            if len(path) > depth:
                found.setdefault(path[:depth], {})[_with_numbers(path[depth:])] = manifest.entries[key]
    return list(found.values())


def _with_numbers(path: Path) -> Path:
    """Return a path in which the epochs that MultiStepLR counts are the numbers that it looks for.

    torch.distributed.checkpoint makes text of them.
    """
    if len(path) == 2 and path[0] == _MILESTONES and str(path[1]).isdigit():
        return (path[0], NumberKey(int(path[1])))
    return path


def find_counter(manifest: Manifest, name: str) -> Entry | None:
    """Return the entry of ``"epoch"`` or ``"global_step"``, which counts optimizer steps, if there is one."""
    by_path = {entry_path(entry): entry for entry in manifest.entries.values()}
    return next((by_path[path] for path in _COUNTERS[name] if path in by_path), None)
