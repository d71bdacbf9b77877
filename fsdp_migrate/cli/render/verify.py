"""What a comparison or a check has found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.filesize import decimal

from fsdp_migrate.cli.render.findings import show_named_findings
from fsdp_migrate.cli.render.inspect import MOST_SHOWN, _entries
from fsdp_migrate.cli.render.screen import console, escape, print_text
from fsdp_migrate.findings import counted


if TYPE_CHECKING:
    from fsdp_migrate.checkpoint_convert import (
        CheckReport,
        VerifyReport,
    )


_LAST_BITS = 1e-6


def show_verification(report: VerifyReport) -> None:
    """Show whether two checkpoints hold the same, and the first differences if they do not."""
    out = console()
    values = counted(report.values, "other value")
    held = f"{counted(report.tensors, 'tensor')} ({decimal(report.nbytes)}) and {values}"
    if report.renamed:
        out.print(f"{_entries(len(report.renamed))} under another name in the second, for example:")
        for name, other in list(report.renamed.items())[:3]:
            print_text(out, f"{name} -> {other}", indent="    ", first="  ")
    if report.aside:
        shown = ", ".join(f"`{escape(key)}`" for key in report.aside[:3])
        more = ", ..." if len(report.aside) > 3 else ""
        aside = _entries(len(report.aside))
        out.print(f"Not compared, because the other keeps such things elsewhere: {aside}, {shown}{more}")
    if report.cast:
        count = len(report.cast)
        what = counted(count, "tensor")
        out.print(f"The first was cast before it was compared, as asked: {what}")
    for key, text in list(report.alike.items())[:3]:
        print_text(out, f"{key}: {text}", indent="    ", first="Alike, in another form: ")
    if report.is_same:
        alike = f", {_entries(len(report.alike))} in another form" if report.alike else ""
        out.print(f"[green]The same[/]: {held}, bit for bit{alike}")
        return
    _show_differences(report, held)


def _show_differences(report: VerifyReport, held: str) -> None:
    """Show how they differ; tensors and the rest apart, where the tensors are the same."""
    out = console()
    if report.are_tensors_same:
        size = f"{counted(report.tensors, 'tensor')} ({decimal(report.nbytes)})"
        out.print(f"[green]All tensors are the same[/], bit for bit: {size}.")
        held = counted(report.values, "other value")
    out.print(f"[red]Different[/], of {held}:")
    for difference in report.differences:
        print_text(out, f"{difference.key}: {difference.message}", indent="    ", first="  ")
    if not report.is_complete:
        out.print("There may be more: the comparison stopped here.")
    if _are_of_last_bits(report):
        out.print(
            "Two runs, under FSDP1 and under FSDP2, may be this far apart, and a conversion may not: clipped "
            "gradients differ in the last bits (HF Trainer clips by default, `max_grad_norm`). What else "
            "does stands in docs/prepare.md, 'What differs in the last bits'."
        )
    if any(found.kind in ("missing", "extra", "dtype") for found in report.differences):
        out.print(
            "If the second was made by `fsdp-migrate convert`, give the same `--rename`, `--map`, `--dtype`, "
            "`--optimizer-dtype`, `--weights-only`, `--model` and `--config` as for that."
        )


def _are_of_last_bits(report: VerifyReport) -> bool:
    """Tell whether values of tensors differ by so little that two runs may be the same but for rounding."""
    return all(
        found.kind == "value" and found.largest is not None and found.largest <= _LAST_BITS
        for found in report.differences
    )


def show_check(report: CheckReport) -> None:
    """Show what was checked of one checkpoint, and what is damaged."""
    out = console()
    out.print(f"[bold]{escape(report.source)}[/]")
    if report.hashed_files is None:
        out.print("No SHA256SUMS: files were not compared with checksums of the whole.")
    else:
        out.print(f"SHA256SUMS lists {counted(report.hashed_files, 'file')}, and each was compared with it.")
    out.print(
        f"Compared with the files: {_entries(report.entries)}; read: {report.items} "
        f"item{'s' * (report.items != 1)}"
    )
    out.print(
        f"  {decimal(report.nbytes)} agree with their checksums, {decimal(report.unprotected)} have none"
    )
    show_named_findings((finding.as_dict() for finding in report.findings), report.source)
    if report.is_whole:
        out.print("[green]Whole[/]: nothing is damaged")
        return
    out.print(f"[red]Damaged[/]: {_damaged(len(report.damages))}")
    for key, text in list(report.damages.items())[:MOST_SHOWN]:
        print_text(out, f"{key}: {text}", indent="    ", first="  ")
    if len(report.damages) > MOST_SHOWN:
        out.print(f"  and {len(report.damages) - MOST_SHOWN} more; --json names them")


def _damaged(count: int) -> str:
    return "1 file or entry" if count == 1 else f"{count} files and entries"
