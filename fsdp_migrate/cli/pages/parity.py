"""The report of ``parity``: the losses, where the runs part, what each step cost, and the units."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdp_migrate.cli.pages.parts import count, findings_tables, make_report
from fsdp_migrate.cli.pages.units import unit_tree
from fsdp_migrate.cli.render.parity import cost_rows
from fsdp_migrate.findings import counted
from fsdp_migrate.parity.report import place, verdict, what_differs
from fsdp_migrate.report.model import Code, Facts, Name, Notes, Number, Plot, Series, Table


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.parity import Difference, ParityReport
    from fsdp_migrate.parity.start import Recipe
    from fsdp_migrate.report.model import Cell, Report, Tone


def parity_report(report: ParityReport, recipe: Recipe) -> Report:
    """Return the report of a comparison.

    Args:
        report: What it found.
        recipe: What was compared.
    """
    tone: Tone = "good" if report.identical else "warning" if report.is_explained else "bad"
    sections = (
        Facts("What was compared", tuple(_facts(report, recipe))),
        None if report.first is None else Facts("Where the runs part first", tuple(_first(report.first))),
        _plot(report),
        _steps(report),
        _differences(report),
        unit_tree(report.unit_summaries),
        _costs(report),
        Notes("What was assumed", report.notes) if report.notes else None,
        *findings_tables(each.as_dict() for each in report.findings),
    )
    return make_report("fsdp-migrate parity", verdict(report), tone, sections, report.versions)


def _facts(report: ParityReport, recipe: Recipe) -> Iterator[tuple[str, Cell]]:
    yield "model", Name(recipe.model)
    yield "arguments of FSDP1", Name(recipe.config) if recipe.config else "its defaults"
    given = {"batches": recipe.data, "loss": recipe.loss, "optimizer": recipe.optimizer}
    yield from ((what, Name(name)) for what, name in given.items() if name)
    if recipe.checkpoint:
        what = "weights of" if recipe.weights_only else "checkpoint"
        yield what, Name(recipe.checkpoint)
    where = f"{counted(report.world_size, 'rank')} ({report.device})"
    yield "steps", f"{counted(len(report.steps), 'step')} on {where}, seed {recipe.seed}"
    yield "parameters", f"{report.num_parameters:,} in {counted(len(report.units), 'unit')}"
    compared = sum(sum(step.compared.values()) for step in report.steps)
    yield "tensors compared", f"{compared:,}, bit for bit"


def _first(first: Difference) -> Iterator[tuple[str, Cell]]:
    yield "when", "before the first step" if first.step == 0 else f"in step {first.step}"
    yield "what", first.stage
    yield "name", Name(first.name or "(the whole model)")
    if first.module and first.module != first.name:
        yield "module", Name(first.module)
    yield "rank", str(first.rank)
    yield "FSDP1 / FSDP2", what_differs(first)
    if first.clue:
        yield "clue", first.clue
    code = f"{first.explained_by}: " if first.explained_by else ""
    yield "explained", f"{code}{first.explanation}"


def _plot(report: ParityReport) -> Plot:
    same = all(repr(step.fsdp1_loss) == repr(step.fsdp2_loss) for step in report.steps)
    says = "The two lines are one: the losses are the same." if same else "The losses differ."
    runs = {
        "FSDP1": tuple((float(step.number), step.fsdp1_loss) for step in report.steps),
        "FSDP2": tuple((float(step.number), step.fsdp2_loss) for step in report.steps),
    }
    series = tuple(Series(name, points) for name, points in runs.items())
    return Plot("Losses", "step", "loss", series, says)


def _steps(report: ParityReport) -> Table:
    columns = ("step", "loss, FSDP1", "loss, FSDP2", "compared", "different")
    rows = tuple(
        (
            count(step.number),
            Number(step.fsdp1_loss, f"{step.fsdp1_loss:.9f}"),
            Number(step.fsdp2_loss, f"{step.fsdp2_loss:.9f}"),
            count(sum(step.compared.values())),
            count(sum(step.different.values())),
        )
        for step in report.steps
    )
    return Table("Steps", columns, rows, numbers=frozenset(columns))


def _differences(report: ParityReport) -> Table | None:
    if report.identical:
        return None
    columns = ("step", "stage", "name", "rank", "how it differs", "ulps", "explained by")
    rows = tuple(
        (
            count(each.step),
            each.stage,
            Name(each.name or "(the whole model)"),
            count(each.rank),
            what_differs(each),
            "" if each.gap.ulps is None else count(each.gap.ulps),
            Code(each.explained_by) if each.explained_by else "no finding",
        )
        for each in report.differences
    )
    first = place(report.differences[0])
    intro = f"In the order of the work. What follows the first is mostly its consequence: {first}."
    numbers = frozenset({"step", "rank", "ulps"})
    more = report.num_differences - len(rows)
    return Table(f"Differences: {report.num_differences:,}", columns, rows, intro, numbers, more=more)


def _costs(report: ParityReport) -> Table:
    columns = ("on rank 0", "FSDP1", "FSDP2")
    intro = (
        "Bytes of collectives are of the whole. Seconds of processes on one machine say little of a cluster."
    )
    rows = tuple((what, *costs) for what, *costs in cost_rows(report))
    return Table("What the last step cost", columns, rows, intro, frozenset(columns[1:]))
