"""What people see, on stderr. With :mod:`fsdp_migrate.cli.progress` the only importer of rich."""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING, Any

from rich import box, markup
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from fsdp_migrate.cli.document import printable
from fsdp_migrate.cli.progress import show_progress
from fsdp_migrate.findings import FINDING_CODES


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractContextManager

    from fsdp_migrate.checkpoint_convert import (
        CheckReport,
        ConversionPlan,
        ConversionReport,
        Manifest,
        ProgressEvent,
        VerifyReport,
    )
    from fsdp_migrate.errors import PlanError


WIDTH_OF_FILES = 120
MOST_SHOWN = 20
# What matters most comes first.
FIDELITIES = ("refused", "changed", "equivalent", "obsolete", "exact")
MOST_OF_ONE_CODE = 8
COLOURS = {"exact": "green", "equivalent": "green", "obsolete": "dim", "changed": "yellow", "refused": "red"}
ACTIONS = {
    "none": "FSDP2 loads it as it is",
    "relink": "new metadata over the same data files; no tensor is rewritten",
    "rewrite": "tensors are streamed into new files",
}
LAYOUTS = {
    "dcp": "Distributed checkpoint (DCP)",
    "file": "Full state in one file",
    "files": "Full state in several files",
    "ranks": "One file per rank",
    "safetensors": "Full state in safetensors",
    **dict.fromkeys(
        (
            "accelerate",
            "olmo",
            "composer-parts",
            "dpo",
            "torchtune",
            "llama2-accessory",
            "llama-cookbook",
            "states",
        ),
        "Model and optimizer apart, in one folder",
    ),
}
WRITERS = {
    "accelerate": "Accelerate",
    "composer": "Composer",
    "hf": "Hugging Face",
    "lightning": "Lightning",
    "torch": "plain torch",
    "torchtitan": "torchtitan",
}
# How many entries of each kind of change are shown; all of them are in the document of `--json`.
SHOWN = 3
_NAME_WIDTH = 16
_WIDE = 100


def escape(text: str) -> str:
    """Return a text as it is to be shown: neither markup nor control characters in it count."""
    return markup.escape(printable(text))


def console() -> Console:
    """Return a console on stderr; where that is no terminal, wide enough that tables stay whole."""
    fixed = None if sys.stderr.isatty() or "COLUMNS" in os.environ else WIDTH_OF_FILES
    return Console(stderr=True, highlight=False, width=fixed)


def say(text: str) -> None:
    """Show one line."""
    console().print(escape(text))


def progress(verb: str) -> AbstractContextManager[Callable[[ProgressEvent], None]]:
    """Return a context that gives what the library is to call as it gets on."""
    return show_progress(console(), verb)


def make_table(*columns: str, right: Iterable[str] = ()) -> Table:
    """Return an empty table; the columns in ``right`` are aligned to the right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


def show_findings(findings: Iterable[Mapping[str, Any]]) -> None:
    """Show findings, each with its fidelity, code, subject, message and hint."""
    table = make_table("fidelity", "code", "subject", "what happens")
    for finding in findings:
        colour = COLOURS[finding["fidelity"]]
        hint = f"\n{finding['hint']}" if finding["hint"] else ""
        table.add_row(
            f"[{colour}]{finding['fidelity']}[/]",
            finding["code"],
            escape(finding["subject"]),
            escape(f"{finding['message']}{hint}"),
        )
    if table.row_count:
        console().print(table)


def show_named_findings(findings: Iterable[Mapping[str, Any]], source: str) -> None:
    """Show findings about a checkpoint by code: what each code means, and what it was found of.

    Args:
        findings: The findings, as plain data.
        source: The checkpoint; what is found of all of it needs no name.
    """
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for finding in findings:
        groups.setdefault(finding["code"], []).append(finding)
    table = make_table("fidelity", "code", "what happens")
    for code, found in sorted(groups.items(), key=lambda group: FIDELITIES.index(group[1][0]["fidelity"])):
        fidelity = found[0]["fidelity"]
        lines = [escape(FINDING_CODES[code].summary)]
        lines += [_detail(finding, source) for finding in found[:MOST_OF_ONE_CODE]]
        if len(found) > MOST_OF_ONE_CODE:
            lines.append(f"  and {len(found) - MOST_OF_ONE_CODE} more; --json names them")
        table.add_row(f"[{COLOURS[fidelity]}]{fidelity}[/]", code, "\n".join(lines))
    if table.row_count:
        console().print(table)


def _detail(finding: Mapping[str, Any], source: str) -> str:
    subject = "" if finding["subject"] == source else f"{finding['subject']}: "
    hint = f" {finding['hint']}" if finding["hint"] else ""
    return escape(f"- {subject}{finding['message']}{hint}")


def show_manifest(manifest: Manifest) -> None:
    """Show what a checkpoint is and what it holds, by part."""
    out = console()
    described = manifest.as_dict()
    layout = LAYOUTS.get(manifest.layout, manifest.layout)
    writer = WRITERS.get(manifest.stack, manifest.stack)
    hint = f", torch {manifest.torch_hint}" if manifest.torch_hint else ""
    out.print(f"[bold]{escape(manifest.source)}[/]")
    out.print(escape(f"{layout}, saved by {writer}{hint}"))
    out.print(escape(f"Recognised by: {manifest.evidence}"))
    right = ("tensors", "other", "size", "chunks")
    table = make_table("part", "name", *right, "divided", "dtypes", right=right)
    table.collapse_padding = True
    longest = max((len(part["name"]) for part in described["parts"]), default=0)
    table.columns[1].min_width = min(longest, _NAME_WIDTH)
    table.columns[-1].min_width = len("bfloat16")
    if out.width < _WIDE:
        table.columns[-2].max_width = len("4 whole")
    for part in described["parts"]:
        held = bool(part["tensors"])
        table.add_row(
            part["kind"],
            escape(part["name"]),
            str(part["tensors"]),
            str(part["values"]),
            decimal(part["nbytes"]) if held else "",
            str(part["chunks"]) if held else "",
            _divided(part) if held else "",
            ", ".join(part["dtypes"]),
        )
    out.print(table)
    files = described["files"]
    total = sum(files.values())
    out.print(f"{len(files)} data file{'s' * (len(files) != 1)}, {decimal(total)}")
    others = described["extra_files"]
    if others:
        out.print(f"{len(others)} other file{'s' * (len(others) != 1)}: {escape(_some(list(others)))}")


def _divided(part: Mapping[str, Any]) -> str:
    """Say how the tensors of a part are divided."""
    if part["ways"] == 1:
        return "whole"
    whole = f", {part['whole']} whole" if part["whole"] else ""
    return f"{part['ways']} ways{whole}"


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{', '.join(names[:SHOWN])}{more}"


def show_outlook(manifest: Manifest, plan: ConversionPlan | None, problem: PlanError | None) -> None:
    """Show what a conversion of the checkpoint would do, or why there can be none; and every finding."""
    out = console()
    if plan is None:
        out.print(escape(str(problem)))
        refused = {finding.code for finding in problem.findings} if problem is not None else set()
        others = (f.as_dict() for f in manifest.findings if f.code not in refused)
        show_named_findings(others, manifest.source)
        return
    if plan.action == "none":
        out.print("[green]FSDP2 loads it as it is.[/] Nothing needs to be converted.")
    else:
        out.print(
            escape(f"`fsdp-migrate convert {shlex.quote(manifest.source)} OUT` would {plan.action} it: "),
            end="",
        )
        out.print(f"{ACTIONS[plan.action]}.")
    described = plan.as_dict()
    show_changes(described)
    show_named_findings(described["findings"], described["source"])


def _entries(count: int) -> str:
    return f"{count} {'entry' if count == 1 else 'entries'}"


def show_plan(plan: ConversionPlan) -> None:
    """Show what a conversion would do; this is what a dry run ends with."""
    described = plan.as_dict()
    out = console()
    out.print(f"[bold]{plan.action}[/]: {ACTIONS[plan.action]}")
    out.print(f"{_entries(described['entries'])}, {decimal(described['nbytes'])} in tensors")
    show_changes(described)
    show_named_findings(described["findings"], described["source"])
    out.print("Nothing was written.")


def show_changes(plan: Mapping[str, Any]) -> None:
    """Show what of the entries changes, with the first names of each kind of change."""
    changes = {
        "renamed": [f"{old} -> {new}" for old, new in plan["renamed"].items()],
        "divided anew": plan["rechunked"],
        "cast": [f"{key}: {cast['from']} -> {cast['to']}" for key, cast in plan["cast"].items()],
        "names inside": plan["rewritten"],
        "taken apart": plan["split"],
        "into other files": [f"{key} -> {name}" for name, keys in plan["files"].items() for key in keys],
        "made anew": plan["synthesised"],
        "left out": plan["left_out"],
        "files copied": plan["extra_files"],
    }
    table = make_table("change", "entries", "for example", right=("entries",))
    for change, entries in changes.items():
        if entries:
            table.add_row(change, str(len(entries)), escape("\n".join(entries[:SHOWN])))
    if table.row_count:
        console().print(table)
    if any(len(entries) > SHOWN for entries in changes.values()):
        console().print("With --json every entry is named.")


def show_conversion(report: ConversionReport) -> None:
    """Show what a conversion did."""
    described = report.as_dict()
    out = console()
    out.print(f"[bold]{report.action}[/]: {ACTIONS[report.action]}")
    show_changes(described)
    show_named_findings(described["findings"], described["source"])
    if report.output is None:
        out.print("Nothing was written.")
        return
    counts = {"of data files linked": report.bytes_linked, "written": report.bytes_written}
    done = ", ".join(f"{decimal(count)} {what}" for what, count in counts.items() if count)
    held = f"{_entries(described['entries'])}, {decimal(described['nbytes'])} in tensors"
    out.print(f"[green]Converted[/] {held}: {done or 'nothing but metadata written'}")
    # Not broken into lines: people copy paths.
    out.print(f"  {described['source']} -> {report.output}", markup=False, soft_wrap=True)


def show_verify_command(source: str, output: str | None, asked: Mapping[str, Any]) -> None:
    """Show what to type to compare an output with its source, after the changes that were asked for."""
    if output is None:
        return
    words = ["fsdp-migrate", "verify", source, output]
    for name in ("rename", "dtype", "optimizer_dtype", "weights_only", "model", "config", "trust_pickle"):
        option, value = f"--{name.replace('_', '-')}", asked[name]
        if value is True:
            words.append(option)
        elif value not in (None, False, "keep"):
            values = value if isinstance(value, list) else [value]
            words += [word for one in values for word in (option, str(one))]
    console().print(f"To compare them: {shlex.join(words)}", markup=False, soft_wrap=True, highlight=False)


def show_verification(report: VerifyReport) -> None:
    """Show whether two checkpoints hold the same, and the first differences if they do not."""
    out = console()
    held = f"{report.tensors} tensors ({decimal(report.nbytes)}) and {report.values} other values"
    if report.renamed:
        table = make_table("in the first", "in the second")
        for name, other in list(report.renamed.items())[:3]:
            table.add_row(escape(name), escape(other))
        out.print(f"{_entries(len(report.renamed))} under another name in the second, for example:")
        out.print(table)
    if report.aside:
        shown = ", ".join(f"`{escape(key)}`" for key in report.aside[:3])
        more = ", ..." if len(report.aside) > 3 else ""
        aside = _entries(len(report.aside))
        out.print(f"Not compared, because the other has no place for them: {aside}, {shown}{more}")
    if report.cast:
        count = len(report.cast)
        what = "1 tensor" if count == 1 else f"{count} tensors"
        out.print(f"The first was cast before it was compared, as asked: {what}")
    if report.is_same:
        out.print(f"[green]The same[/]: {held}, bit for bit")
        return
    table = make_table("entry", "difference")
    for difference in report.differences:
        table.add_row(escape(difference.key), escape(difference.message))
    out.print(f"[red]Different[/], of {held}:")
    out.print(table)
    if not report.is_complete:
        out.print("There may be more: the comparison stopped here.")
    if any(found.kind in ("missing", "extra", "dtype") for found in report.differences):
        out.print(
            "If the second was made by `fsdp-migrate convert`, give the same `--rename`, `--dtype`, "
            "`--optimizer-dtype`, `--weights-only`, `--model` and `--config` as for that."
        )


def show_check(report: CheckReport) -> None:
    """Show what was checked of one checkpoint, and what is damaged."""
    out = console()
    out.print(f"[bold]{escape(report.source)}[/]")
    if report.hashed_files is None:
        out.print("No SHA256SUMS: files were not held against checksums of the whole.")
    else:
        out.print(f"SHA256SUMS lists {report.hashed_files} files, and each was held against it.")
    out.print(
        f"Held against the files: {_entries(report.entries)}; read: {report.items} "
        f"item{'s' * (report.items != 1)}"
    )
    out.print(
        f"  {decimal(report.nbytes)} agree with their checksums, {decimal(report.unprotected)} have none"
    )
    show_named_findings((finding.as_dict() for finding in report.findings), report.source)
    if report.is_whole:
        out.print("[green]Whole[/]: nothing is damaged")
        return
    table = make_table("damaged", "what is wrong")
    for key, text in list(report.damages.items())[:MOST_SHOWN]:
        table.add_row(escape(key), escape(text))
    out.print(f"[red]Damaged[/]: {len(report.damages)} files and entries")
    out.print(table)
