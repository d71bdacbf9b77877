"""What the demo shows: the runs side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdp_migrate.cli.render.changes import ACTIONS, show_changes
from fsdp_migrate.cli.render.findings import show_findings
from fsdp_migrate.cli.render.screen import console, make_table


if TYPE_CHECKING:
    from rich.table import Table

    from fsdp_migrate.demo import DemoReport
    from fsdp_migrate.demo.compare import Comparison


_NEXT = (
    ("fsdp-migrate scan .", "what your project holds, and the commands for it in order"),
    ("fsdp-migrate inspect CKPT", "what a checkpoint is, and whether FSDP2 loads it as it is"),
    ("fsdp-migrate convert CKPT OUT", "makes it one that FSDP2 loads"),
    ("prepare_fully_shard(model, {...})", "in your script, with FSDP's arguments"),
    ("load_checkpoint(CKPT, model, optimizer)", "any checkpoint of FSDP1, as it is"),
)
_WIDEST = max(len(what) for what, _ in _NEXT)


def show_demo(report: DemoReport) -> None:
    """Show the loss columns, the largest differences, the findings, and what to type next."""
    out = console()
    out.print()
    out.print(_losses(report))
    action = report.conversion.action
    out.print("Loaded as it is: one line, `load_checkpoint(CKPT, model, optimizer)`, and no file is written.")
    out.print(f"The checkpoint was converted by [bold]{action}[/]: {ACTIONS[action]}.")
    show_changes(report.conversion.as_dict())
    out.print(
        "The run was compiled, as many are: hence `_orig_mod.`, which torch.compile puts into each name."
    )
    table = make_table("compared with FSDP1", "how many", "largest difference", right=("how many",))
    names = ("converted: losses", "converted: parameters", "converted: optimizer state")
    loaded = ("loaded: losses", "loaded: parameters", "loaded: optimizer state")
    parts = (*report.converted.parts, *report.loaded.parts)
    for name, part in zip((*names, *loaded), parts, strict=True):
        table.add_row(name, str(part.num_values), _difference(part))
    out.print(table)
    out.print("What became of the FSDP1 arguments:")
    show_findings(report.findings, everything=True)
    out.print("Next, with a run of your own:")
    for what, does in _NEXT:
        out.print(f"  {what:<{_WIDEST}}  {does}", markup=False, highlight=False)
    if report.folder:
        out.print(f"The checkpoints are in {report.folder}", markup=False)
    out.print()
    if report.identical:
        out.print(f"After step {report.saved_at} the run went on under FSDP2: [bold green]identical[/]")
    elif report.world_size not in (1, 2, 4):
        out.print(
            f"Sums over {report.world_size} ranks are made in another order under FSDP2, so that the last "
            "bits [bold yellow]differ[/]. With 2 or 4 processes they do not."
        )
    else:
        out.print("The runs [bold red]differ[/]. This is a bug in fsdp-migrate, or in this torch.")


def _losses(report: DemoReport) -> Table:
    columns = ("step", "FSDP1", "converted", "difference", "loaded as it is", "difference")
    table = make_table(*columns, right=columns)
    for step, first in report.fsdp1_losses.items():
        saved = step == report.saved_at
        cells = []
        for run in (report.converted, report.loaded):
            second = run.losses.get(step)
            cells.append(f"{second:.9f}" if second is not None else "[dim]saved[/]" if saved else "")
            cells.append(f"{second - first:g}" if second is not None else "")
        table.add_row(str(step), f"{first:.9f}", *cells, end_section=saved)
    return table


def _difference(part: Comparison) -> str:
    if not part.num_different:
        return "[green]0[/], every bit is the same"
    return f"[red]{part.largest_difference:g}[/], {part.num_different} differ, first {part.first_different}"
