"""What a conversion does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fsdp_migrate.cli.render.findings import is_of_every_export
from fsdp_migrate.cli.render.screen import console, print_text


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


ACTIONS = {
    "none": "FSDP2 loads it as it is",
    "relink": "new metadata over the same data files; no tensor is rewritten",
    "rewrite": "tensors are streamed into new files",
}
# How many entries of each kind of change are shown; all of them are in the document of `--json`.
SHOWN = 3
_NO_WEIGHTS = ", which are no weights of the model"
# Findings for everybody's eyes that say which parts are left out, and why.
_NAME_WHAT_IS_LEFT = ("FM257",)


def changes_of(plan: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return what of the entries changes, by kind of change; kinds without a change are left out."""
    changes: dict[str, list[str]] = {
        "renamed": [f"{old} -> {new}" for old, new in plan["renamed"].items()],
        "divided again": plan["rechunked"],
        "cast": [f"{key}: {cast['from']} -> {cast['to']}" for key, cast in plan["cast"].items()],
        "names inside": plan["rewritten"],
        "split": plan["split"],
        "into other files": [f"{key} -> {name}" for name, keys in plan["files"].items() for key in keys],
        "generated": plan["synthesised"],
        "left out": plan["left_out"],
        "files copied": plan["extra_files"],
    }
    return {change: entries for change, entries in changes.items() if entries}


def shown_of(entries: Sequence[str]) -> Sequence[str]:
    """Return the first entries; all of them where one more fills the line that would say so.

    Example:
        >>> len(shown_of("abcd")), len(shown_of("abcde"))
        (4, 3)
    """
    return entries if len(entries) <= SHOWN + 1 else entries[:SHOWN]


def show_changes(plan: Mapping[str, Any], *, everything: bool = False) -> None:
    """Show what of the entries changes, with the first names of each kind of change.

    Args:
        plan: The conversion, as plain data.
        everything: Findings that need no action are shown, too.
    """
    out, changes = console(), changes_of(plan)
    told = [each for each in plan["findings"] if each["code"] in _NAME_WHAT_IS_LEFT]
    is_shown = everything or not all(map(is_of_every_export, told))
    for change, entries in changes.items():
        is_told = change == "left out" and bool(told)
        where = f", see {told[0]['code']}" if told and is_shown else _NO_WEIGHTS
        print_text(out, f"{change}: {len(entries)}{where if is_told else ''}")
        for entry in () if is_told else shown_of(entries):
            print_text(out, entry, indent="    ", first="  ")
    if any(len(shown_of(entries)) < len(entries) for entries in changes.values()):
        out.print("With --json every entry is named.")
