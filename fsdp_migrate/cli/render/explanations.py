"""What a code means, as people see it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdp_migrate.cli.render.findings import COLOURS
from fsdp_migrate.cli.render.paragraphs import set_definitions
from fsdp_migrate.cli.render.screen import console, print_text


if TYPE_CHECKING:
    from collections.abc import Sequence

    from fsdp_migrate.explanations import Explanation


# How faithful FSDP2 is, for people who meet the word first here.
_FIDELITIES = {
    "exact": "FSDP2 does the same",
    "equivalent": "another mechanism for the same; what may differ is said below",
    "obsolete": "FSDP2 needs no such thing",
    "changed": "something that you could notice differs",
    "refused": "it is not migrated as it is; what takes its place is said below",
}


def show_explanations(found: Sequence[Explanation]) -> None:
    """Show what each code means, why it is so, and what to do."""
    out = console()
    for number, each in enumerate(found):
        if number:
            out.print()
        colour = COLOURS[each.fidelity]
        out.print(f"[bold]{each.code}[/] [{colour}]{each.fidelity}[/]: {_FIDELITIES[each.fidelity]}")
        action = f"{each.action} {each.comment}".rstrip()
        for title, text in (("What it means", each.means), ("Why", each.why), ("What to do", action)):
            out.print(f"\n[bold]{title}[/]")
            print_text(out, text, indent="  ")


def show_codes(found: Sequence[Explanation]) -> None:
    """Show a line about each code."""
    out = console()
    rows = [(f"{each.code} {each.fidelity}", each.means) for each in sorted(found, key=lambda e: e.code)]
    for line in set_definitions(rows, width=out.width, indent=""):
        out.print(line, markup=False, soft_wrap=True)
