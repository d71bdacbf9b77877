"""What a conversion would do, or has done."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from rich.filesize import decimal

from fsdp_migrate.cli.render.changes import ACTIONS, show_changes
from fsdp_migrate.cli.render.findings import show_named_findings
from fsdp_migrate.cli.render.inspect import _entries
from fsdp_migrate.cli.render.screen import console, print_text


if TYPE_CHECKING:
    from collections.abc import Mapping

    from fsdp_migrate.checkpoint_convert import (
        ConversionPlan,
        ConversionReport,
    )


_FOLDER = (
    "The output is a folder, which torch.load does not open. A line that reads the file with torch.load "
    "needs no output: rewritten, it reads that file as before."
)
_WHOLE = (
    "The output is a folder for dcp.load. In it lies {}, whole and by the names of FSDP2's model, for "
    "torch.load and fabric.load."
)


def show_plan(plan: ConversionPlan, *, everything: bool = False) -> None:
    """Show what a conversion would do; this is what a dry run ends with."""
    described = plan.as_dict()
    out = console()
    out.print(f"[bold]{plan.action}[/]: {ACTIONS[plan.action]}")
    out.print(f"{_entries(described['entries'])}, {decimal(described['nbytes'])} in tensors")
    show_changes(described, everything=everything)
    show_named_findings(described["findings"], described["source"], everything=everything)
    out.print("Nothing was written.")


def show_conversion(report: ConversionReport, *, everything: bool = False) -> None:
    """Show what a conversion did."""
    described = report.as_dict()
    out = console()
    out.print(f"[bold]{report.action}[/]: {ACTIONS[report.action]}")
    show_changes(described, everything=everything)
    show_named_findings(described["findings"], described["source"], everything=everything)
    if report.output is None:
        out.print("Nothing was written.")
        return
    counts = {"of data files linked": report.bytes_linked, "written": report.bytes_written}
    done = ", ".join(f"{decimal(count)} {what}" for what, count in counts.items() if count)
    held = f"{_entries(described['entries'])}, {decimal(described['nbytes'])} in tensors"
    if report.bytes_resumed and report.bytes_resumed == report.bytes_written:
        out.print(f"[green]All of it was there already[/]: {held}; every byte is as it would be written.")
    else:
        out.print(f"[green]Converted[/] {held}: {done or 'nothing but metadata written'}")
    # Not broken into lines: people copy paths.
    out.print(f"  {described['source']} -> {report.output}", markup=False, soft_wrap=True)
    if report.plan.manifest.layout == "file" and report.plan.is_distributed:
        whole = [file.name for file in report.plan.files if report.plan.framework == "torch"]
        print_text(out, _WHOLE.format(whole[0]) if whole else _FOLDER)


def show_verify_command(source: str, output: str | None, asked: Mapping[str, Any]) -> None:
    """Show what to type to compare an output with its source, after the changes that were asked for."""
    if output is None:
        return
    words = ["fsdp-migrate", "verify", source, output]
    for name in (
        "rename",
        "map",
        "dtype",
        "optimizer_dtype",
        "weights_only",
        "without_optimizer",
        "model",
        "config",
        "trust_pickle",
    ):
        option, value = f"--{name.replace('_', '-')}", asked[name]
        if value is True:
            words.append(option)
        elif value not in (None, False, "keep"):
            values = value if isinstance(value, list) else [value]
            words += [word for one in values for word in (option, str(one))]
    console().print(f"To compare them: {shlex.join(words)}", markup=False, soft_wrap=True, highlight=False)
