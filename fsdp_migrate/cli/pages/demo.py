"""The report of ``demo``: the losses of three runs, what differs at the end, and what was converted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdp_migrate.cli.pages.parts import count, findings_tables, make_report
from fsdp_migrate.cli.render.changes import ACTIONS
from fsdp_migrate.findings import counted
from fsdp_migrate.report.model import Facts, Name, Number, Plot, Series, Table


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.demo import DemoReport
    from fsdp_migrate.report.model import Cell, Report, Section, Tone


def demo_report(report: DemoReport) -> Report:
    """Return the report of a demo."""
    sums_differ = report.world_size not in (1, 2, 4)
    tone: Tone = "good" if report.identical else "warning" if sums_differ else "bad"
    sections: tuple[Section, ...] = (
        Facts("What was run", tuple(_facts(report))),
        _plot(report),
        _losses(report),
        _parts(report),
        *findings_tables(report.findings, "What became of the FSDP1 arguments"),
    )
    return make_report("fsdp-migrate demo", _verdict(report), tone, sections, {"torch": report.torch_version})


def _verdict(report: DemoReport) -> str:
    if report.identical:
        return f"Identical: after step {report.saved_at} the run went on under FSDP2. No bit differs."
    if report.world_size not in (1, 2, 4):
        ranks = report.world_size
        return f"The last bits differ: sums over {ranks} ranks are made in another order under FSDP2."
    return "Different: this is a bug in fsdp-migrate, or in this torch."


def _facts(report: DemoReport) -> Iterator[tuple[str, Cell]]:
    yield "first run", f"FSDP1, {counted(report.num_steps, 'step')}; saved after step {report.saved_at}"
    yield "second run", "FSDP2, from the converted checkpoint"
    yield "third run", "FSDP2, from FSDP1's own checkpoint, by `load_checkpoint`"
    yield "processes", str(report.world_size)
    action = report.conversion.action
    yield "conversion", f"{action}: {ACTIONS[action]}"
    same = "every tensor is the same" if report.verification.is_same else "tensors differ"
    yield "the converted checkpoint", f"{counted(report.verification.tensors, 'tensor')} compared: {same}"
    if report.folder:
        yield "checkpoints", Name(report.folder)


def _plot(report: DemoReport) -> Plot:
    runs = {
        "FSDP1": report.fsdp1_losses,
        "FSDP2, converted": report.converted.losses,
        "FSDP2, loaded as it is": report.loaded.losses,
    }
    series = tuple(
        Series(name, tuple((float(step), loss) for step, loss in losses.items()))
        for name, losses in runs.items()
    )
    same = report.converted.losses == report.loaded.losses and all(
        report.fsdp1_losses.get(step) == loss for step, loss in report.converted.losses.items()
    )
    says = (
        "From the checkpoint on the three lines are one: the losses are the same."
        if same
        else "The losses differ after the checkpoint."
    )
    marks = ((float(report.saved_at), "saved"),)
    return Plot("Losses", "step", "loss", series, says, marks)


def _losses(report: DemoReport) -> Table:
    columns = (
        "step",
        "FSDP1",
        "FSDP2, converted",
        "difference",
        "FSDP2, loaded as it is",
        "difference of it",
    )
    rows = []
    for step, first in report.fsdp1_losses.items():
        cells: list[Cell] = [count(step), Number(first, f"{first:.9f}")]
        for run in (report.converted, report.loaded):
            second = run.losses.get(step)
            cells += (
                ["", ""]
                if second is None
                else [Number(second, f"{second:.9f}"), Number(second - first, f"{second - first:g}")]
            )
        rows.append(tuple(cells))
    return Table("Losses by step", columns, tuple(rows), numbers=frozenset(columns))


def _parts(report: DemoReport) -> Table:
    columns = ("run", "what", "compared", "different", "largest difference", "first that differs")
    names = ("loss", "parameters", "optimizer state")
    runs = (("converted", report.converted), ("loaded as it is", report.loaded))
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (
            run,
            name,
            count(part.num_values),
            count(part.num_different),
            Number(part.largest_difference, f"{part.largest_difference:g}"),
            Name(part.first_different) if part.first_different else "",
        )
        for run, continuation in runs
        for name, part in zip(names, continuation.parts, strict=True)
    )
    return Table("At the end, bit for bit", columns, rows, numbers=frozenset(columns[2:5]))
