"""What a comparison of FSDP1 with FSDP2 shows: the verdict, where they part, and what each step cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.filesize import decimal

from fsdp_migrate.cli.render.findings import show_findings
from fsdp_migrate.cli.render.screen import console, make_table
from fsdp_migrate.parity.report import lines_of, place, verdict, what_differs


if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table

    from fsdp_migrate.parity import Cost, Difference, ParityReport


_MOST_SHOWN = 10


def show_parity(report: ParityReport, *, everything: bool = False) -> None:
    """Show the verdict, the first difference, the steps, what they cost, and what was assumed."""
    out = console()
    if report.first is not None:
        _show_first(report.first)
        others = report.differences[1:]
        shown = others if everything else others[:_MOST_SHOWN]
        if shown:
            out.print("And then:")
        for each in shown:
            out.print(f"  step {each.step}, {place(each)}: {what_differs(each)}", markup=False)
        if report.num_differences - 1 > len(shown):
            out.print(f"  and {report.num_differences - 1 - len(shown):,} more", markup=False)
    out.print(_steps(report))
    out.print(_costs(report))
    for note in report.notes:
        out.print(f"- {note}", markup=False)
    show_findings([each.as_dict() for each in report.findings], everything=everything)
    out.print()
    out.print(verdict(report), markup=False)


def _show_first(first: Difference) -> None:
    out = console()
    for line in lines_of(first):
        out.print(line, markup=False)


def _steps(report: ParityReport) -> Table:
    columns = ("step", "loss, FSDP1", "loss, FSDP2", "compared", "different")
    table = make_table(*columns, right=columns)
    for step in report.steps:
        table.add_row(
            str(step.number),
            f"{step.fsdp1_loss:.9f}",
            f"{step.fsdp2_loss:.9f}",
            f"{sum(step.compared.values()):,}",
            f"{sum(step.different.values()):,}",
        )
    return table


def _costs(report: ParityReport) -> Table:
    """Show what the last step cost on rank 0; the first ones also allocate."""
    table = make_table("the last step, on rank 0", "FSDP1", "FSDP2", right=("FSDP1", "FSDP2"))
    for row in cost_rows(report):
        table.add_row(*row)
    return table


def cost_rows(report: ParityReport) -> Iterator[tuple[str, str, str]]:
    """Yield what the last step cost on rank 0: what it is, under FSDP1, under FSDP2."""
    last = report.steps[-1]
    one, other = last.fsdp1, last.fsdp2
    yield "seconds, without comparing", f"{one.seconds:.3f}", f"{other.seconds:.3f}"
    for name in ("parameter", "gradient", "optimizer", "buffer"):
        first, second = (decimal(getattr(each, f"{name}_bytes")) for each in (one, other))
        yield f"{name} bytes held", first, second
    if one.peak_bytes is not None and other.peak_bytes is not None:
        yield "peak in forward and backward", decimal(one.peak_bytes), decimal(other.peak_bytes)
    for key in sorted({(c.kind, c.dtype, c.group_size) for each in (one, other) for c in each.collectives}):
        kind, dtype, size = key
        yield f"{kind}, {dtype}, of {size} ranks", _sent(one, key), _sent(other, key)


def _sent(cost: Cost, key: tuple[str, str, int]) -> str:
    for each in cost.collectives:
        if (each.kind, each.dtype, each.group_size) == key:
            return f"{each.calls} x, {decimal(each.bytes)}"
    return "none"
