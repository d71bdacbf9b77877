"""What a conversion does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fsdp_migrate.cli.render.screen import console, print_text


if TYPE_CHECKING:
    from collections.abc import Mapping


ACTIONS = {
    "none": "FSDP2 loads it as it is",
    "relink": "new metadata over the same data files; no tensor is rewritten",
    "rewrite": "tensors are streamed into new files",
}
# How many entries of each kind of change are shown; all of them are in the document of `--json`.
SHOWN = 3
# Findings for everybody's eyes that say which parts are left out, and why.
_NAME_WHAT_IS_LEFT = ("FM257",)


def show_changes(plan: Mapping[str, Any]) -> None:
    """Show what of the entries changes, with the first names of each kind of change."""
    changes = {
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
    told = [code for code in _NAME_WHAT_IS_LEFT if any(each["code"] == code for each in plan["findings"])]
    out = console()
    for change, entries in changes.items():
        is_told = change == "left out" and bool(told)
        if entries:
            print_text(out, f"{change}: {len(entries)}{f', see {told[0]}' if is_told else ''}")
            for entry in () if is_told else entries[:SHOWN]:
                print_text(out, entry, indent="    ", first="  ")
    if any(len(entries) > SHOWN for entries in changes.values()):
        out.print("With --json every entry is named.")
