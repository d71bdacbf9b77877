"""Shows people what ``scan`` found and what ``rewrite`` does."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.syntax import Syntax
from rich.table import Table

from fsdp_migrate.cli.render import console
from fsdp_migrate.source.uses import ACTIONS


if TYPE_CHECKING:
    from collections.abc import Sequence

    from fsdp_migrate.source import RewriteReport, ScanReport, Use
    from fsdp_migrate.source.steps import Step
    from fsdp_migrate.source.surroundings import CheckpointFound, ConfigFound


_STYLES = {"rewritten": "green", "kept": "dim", "commented": "yellow", "mentioned": "dim"}
_STATES = {
    "changes": "would change",
    "fsdp2": "is FSDP2 already",
    "refused": "[red]cannot be converted[/]",
    "unclear": "[yellow]not known[/]",
    "broken": "[red]cannot be read[/]",
}
_SHOWN = 10


def show_scan(report: ScanReport) -> None:
    """Show every use, file by file, and how many each rule found."""
    out = console()
    for file in report.files:
        if file.problem:
            out.print(f"[red]{escape(file.problem)}[/]")
        for use in file.uses:
            out.print(_line(use), soft_wrap=True)
    uses = report.uses
    files = len({use.path for use in uses})
    out.print()
    if not uses:
        out.print(f"No FSDP1 in {_count(report.num_files, 'file')}.")
        return
    out.print(_summary(report))
    out.print(
        f"{_count(len(uses), 'use')} in {_count(files, 'file')} of {report.num_files:,}. "
        "[bold]fsdp-migrate rewrite PATH --write[/] turns what is rewritten, and comments what is commented."
    )


def show_surroundings(
    configs: Sequence[ConfigFound], checkpoints: Sequence[CheckpointFound], steps: Sequence[Step]
) -> None:
    """Show the configs and checkpoints that were found, and what to do."""
    out = console()
    if configs:
        out.print("\n[bold]Configs[/]")
        for config in configs:
            said = f"{config.stack}: {_STATES[config.state]}" if config.stack else _STATES[config.state]
            out.print(f"{escape(config.path)}: {said} {escape(config.message)}".rstrip(), soft_wrap=True)
    if checkpoints:
        out.print("\n[bold]Checkpoints[/]")
        for checkpoint in checkpoints:
            out.print(f"{escape(checkpoint.path)}: {checkpoint.layout}", soft_wrap=True)
    if steps:
        out.print("\n[bold]What to do[/]")
    for number, step in enumerate(steps, 1):
        out.print(f"{number}. {escape(step.text)}", soft_wrap=True)
        for command in step.commands[:_SHOWN]:
            out.print(f"   {escape(command)}", soft_wrap=True)
        if len(step.commands) > _SHOWN:
            out.print(f"   and likewise for {len(step.commands) - _SHOWN} more")


def _line(use: Use) -> str:
    style = _STYLES[use.action]
    what = f"{use.code} [{style}]{use.action:9}[/] {escape(use.text)}"
    return f"[bold]{escape(use.place)}[/]: {what} [dim]->[/] {escape(use.becomes)}"


def _summary(report: ScanReport) -> Table:
    table = Table("rule", *ACTIONS, box=None)
    for rule, counts in report.by_rule.items():
        table.add_row(rule, *(str(counts[action] or "") for action in ACTIONS))
    return table


def show_rewriting(report: RewriteReport, *, diff: bool) -> None:
    """Show the changes as a diff on stdout, or the names of the files; what went wrong on stderr."""
    out = console()
    for file in report.changed:
        if diff:
            _show_diff(file.diff)
        elif report.written:
            out.print(f"{escape(file.path)} [dim](before: {escape(file.backup or '')})[/]", soft_wrap=True)
        else:
            out.print(f"would change: {escape(file.path)}", soft_wrap=True)
    for file in report.problems:
        out.print(f"[red]{escape(file.problem or '')}[/]", soft_wrap=True)
    done = "changed" if report.written else "would change"
    out.print(f"{_count(len(report.changed), 'file')} of {report.num_files:,} {done}.")
    if report.changed:
        out.print(
            "Look for `# fsdp-migrate:` comments: they say what is left to do. "
            "Then convert the checkpoints: fsdp-migrate convert CKPT OUT.",
            soft_wrap=True,
        )


def _show_diff(text: str) -> None:
    """Write a diff to stdout, where `git apply` can read it; coloured on a terminal."""
    if sys.stdout.isatty():
        Console(highlight=False).print(Syntax(text, "diff", background_color="default"))
    else:
        sys.stdout.write(text)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
