"""What a comparison of two runs of a script shows: where they part, what they left, and the verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdp_migrate.cli.render.screen import console
from fsdp_migrate.parity.printed_lines import counts_whole, printed_order
from fsdp_migrate.parity.report import lines_of, place, what_differs
from fsdp_migrate.parity.script_report import cause, changes, verdict


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.parity import Difference
    from fsdp_migrate.parity.script_report import ScriptReport


_MOST_SHOWN = 3
_WHOLE = (
    "  Of parameters FSDP1's run counts this rank's shards, and FSDP2's the whole, as in Lightning's "
    "summary of a model: the model has not grown."
)


def show_comparison(report: ScriptReport, *, everything: bool = False) -> None:
    """Show the first difference, those behind it, what was printed and left otherwise, and the verdict."""
    out = console()
    for line in _lines(report, None if everything else _MOST_SHOWN):
        out.print(line, markup=False)
    out.print()
    out.print(verdict(report), markup=False)


def _lines(report: ScriptReport, most: int | None) -> Iterator[str]:
    if report.first is not None and not report.differs_from_itself:
        yield from _differences(report, report.first, most)
    yield from _pairs(report, most)
    for lines, which in ((report.printed_before, "FSDP1"), (report.printed_after, "FSDP2")):
        shown = lines[:most]
        if shown:
            yield f"Printed under {which} only ({len(shown)} of {len(lines)}):"
            yield from (f"  {line}" for line in shown)
    if said := report.told if most is None else changes(report):
        yield (
            "The run under FSDP2 says:"
            if most is None
            else "The run under FSDP2 says what it does otherwise:"
        )
        yield from (f"  {line}" for line in said)
    for files, which in ((report.only_before, "FSDP1"), (report.only_after, "FSDP2")):
        if files:
            yield f"Written under {which} only: {', '.join(files)}"
    for saved in report.checkpoints:
        if saved.is_same is None:
            yield f"{saved.path} was not compared: {saved.words}"
        else:
            as_own = ". FSDP1's own run, rounded otherwise, differs by as much" if saved.is_enlarged else ""
            yield f"{saved.path}: {'the same' if saved.is_same else f'differs: {saved.words}{as_own}'}"
    for records in report.records:
        yield f"{records.path}: {records.words or 'the same but for times and memory'}"
    yield from report.notes


def _pairs(report: ScriptReport, most: int | None) -> Iterator[str]:
    if report.printed:
        yield "Printed with other numbers, times, speeds and memory aside:"
    pairs = report.printed if most is None else sorted(report.printed, key=printed_order)[:most]
    for one, other in pairs:
        yield f"  FSDP1: {one}"
        yield f"  FSDP2: {other}"
    if (left := report.num_pairs - len(pairs)) > 0:
        yield f"  and {left:,} more"
    if counts_whole(report.printed):
        yield _WHOLE


def _differences(report: ScriptReport, first: Difference, most: int | None) -> Iterator[str]:
    head, *lines = lines_of(first)
    # Of runs that are alike below, `part` alone would say the contrary.
    yield f"By rounding t{head[1:]}" if report.alike else head
    yield from (line for line in lines if not line.startswith("  explained:"))
    if said := cause(report):
        yield f"  cause:     {said}"
    others = report.differences[1:][:most]
    if others:
        yield "And then:"
    for each in others:
        yield f"  step {each.step}, {place(each)}: {what_differs(each)}"
    if (left := report.num_differences - 1 - len(others)) > 0:
        yield f"  and {left:,} more"
