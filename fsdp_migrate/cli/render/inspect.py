"""What a checkpoint is and holds."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from rich.filesize import decimal

from fsdp_migrate.checkpoint_convert.formats.file_names import METADATA_FILE
from fsdp_migrate.checkpoint_convert.loading.advice import (
    BEFORE_LOADING,
    WITHOUT_OPTIMIZER,
    advise_loading,
    lacks_optimizer,
    loads_unconverted,
)
from fsdp_migrate.checkpoint_convert.sources.content_findings import NO_TENSORS
from fsdp_migrate.checkpoint_convert.sources.folder_layouts import layout_title
from fsdp_migrate.checkpoint_convert.targets.frameworks import TARGETS
from fsdp_migrate.cli.render.changes import ACTIONS, changes_of, show_changes, shown_of
from fsdp_migrate.cli.render.findings import show_named_findings
from fsdp_migrate.cli.render.screen import console, escape, make_table, print_text
from fsdp_migrate.findings import listed


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fsdp_migrate.checkpoint_convert import (
        ConversionPlan,
        Manifest,
    )
    from fsdp_migrate.errors import PlanError


MOST_SHOWN = 20
_WIDE = 100
_NOT_COPIED = "FM212"
_KNOWS_ITS_UNITS = (
    "Nothing needs to be converted for a model of `prepare_fully_shard`: it knows how FSDP1 flattened it, "
    "and loads the files of all ranks as they are."
)
_NEEDS_MORE = "A conversion needs more than is in it:"


def show_manifest(manifest: Manifest) -> None:
    """Show what a checkpoint is and what it holds, by part."""
    out = console()
    described = manifest.as_dict()
    layout = layout_title(manifest.layout)
    writer = TARGETS[manifest.framework].title
    hint = f", torch {manifest.torch_hint}" if manifest.torch_hint else ""
    out.print(f"[bold]{escape(manifest.source)}[/]")
    out.print(escape(f"{layout}, saved by {writer}{hint}"))
    out.print(escape(f"Recognised by: {manifest.evidence}"))
    right = ("tensors", "other", "size", "chunks")
    table = make_table("part", "name", *right, "divided", "dtypes", right=right)
    # Collapsed padding would cut the widest header at 100 columns with rich 13.9.
    table.padding = (0, 0) if out.width < _WIDE else (0, 1, 0, 0)
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
    # Of frameworks that keep several distributed checkpoints, `.metadata` is among them.
    files = {name: size for name, size in described["files"].items() if not name.endswith(METADATA_FILE)}
    total = sum(files.values())
    out.print(f"{len(files)} data file{'s' * (len(files) != 1)}, {decimal(total)}")
    others = described["extra_files"]
    if others:
        shown = shown_of(list(others))
        more = " (--json names them)" if len(shown) < len(others) else ""
        names = escape(listed(others, len(shown)))
        out.print(f"{len(others)} other file{'s' * (len(others) != 1)}: {names}{more}", soft_wrap=True)


def _divided(part: Mapping[str, Any]) -> str:
    """Say how the tensors of a part are divided."""
    if part["ways"] == 1:
        return "whole"
    whole = f", {part['whole']} whole" if part["whole"] else ""
    return f"{part['ways']} ways{whole}"


def show_outlook(
    manifest: Manifest,
    plan: ConversionPlan | None,
    problem: PlanError | None,
    needed: Sequence[str] = (),
    *,
    everything: bool = False,
) -> None:
    """Show what a conversion of the checkpoint would do, or why there can be none; and every finding.

    Args:
        manifest: What the checkpoint holds.
        plan: What a conversion would do.
        problem: Why there can be none.
        needed: The options that say what the checkpoint does not, which a conversion needs too.
        everything: Show findings that need no action, too.
    """
    out = console()
    if plan is None:
        refused = {finding.code for finding in problem.findings} if problem is not None else set()
        if loads_unconverted(manifest, refused):
            print_text(out, _KNOWS_ITS_UNITS)
            _show_loading(manifest, is_better_converted=False)
            out.print(_NEEDS_MORE)
        out.print(escape(str(problem)))
        others = (f.as_dict() for f in manifest.findings if f.code not in refused)
        show_named_findings(others, manifest.source, everything=everything)
        return
    if any(finding.code == NO_TENSORS for finding in manifest.findings):
        show_named_findings(plan.as_dict()["findings"], manifest.source, everything=everything)
        return
    by_framework = advise_loading(manifest).by_framework
    is_needed = plan.action != "none" and by_framework is None
    if is_needed:
        command = shlex.join(["fsdp-migrate", "convert", manifest.source, "OUT", *needed])
        target = TARGETS[manifest.framework]
        own = f"{target.title}'s own FSDP2" if manifest.framework != "torch" else "dcp.load"
        loader = target.loader or own
        print_text(
            out, f"{loader} needs it converted: `{command}` would {plan.action} it: {ACTIONS[plan.action]}."
        )
    else:
        whose = "[green]FSDP2 loads it as it is.[/] " if plan.action == "none" else ""
        out.print(f"{whose}Nothing needs to be converted.")
        loader = TARGETS[manifest.framework].loader
        is_ready = BEFORE_LOADING.isdisjoint(finding.code for finding in manifest.findings)
        if by_framework is None and plan.action == "none" and loader and is_ready:
            goes_on = f"{loader} goes on from it under FSDP2, by the path as before."
            print_text(out, WITHOUT_OPTIMIZER if lacks_optimizer(manifest) else goes_on)
    if by_framework is not None:
        print_text(out, by_framework)
    _show_loading(manifest, is_better_converted=is_needed)
    described = plan.as_dict()
    if plan.action != "none" and (is_needed or everything) and changes_of(described):
        out.print("What a conversion would do and say:")
        show_changes(described)
    # Of what is not converted nothing is left out, and who reads the files beside it was said above.
    findings = [each for each in described["findings"] if is_needed or each["code"] != _NOT_COPIED]
    show_named_findings(findings, described["source"], everything=everything)


def _show_loading(manifest: Manifest, *, is_better_converted: bool) -> None:
    """Show what one types to load it without converting, and when converting is better."""
    out, advice = console(), advise_loading(manifest)
    out.print("Without converting, `fsdp_migrate.load_checkpoint` loads it into a model:")
    for line in advice.call.splitlines():
        print_text(out, line, indent="      ", first="  ")
    if advice.given_back is not None:
        print_text(out, advice.given_back, indent="  ")
    if advice.others is not None:
        print_text(out, advice.others, indent="  ")
    if advice.trainer is not None:
        out.print("Composer's Trainer loads it with one callback more:")
        print_text(out, advice.trainer, indent="      ", first="  ")
    if is_better_converted and advice.better_converted:
        print_text(out, f"Converting is still better where {', or where '.join(advice.better_converted)}.")


def _entries(count: int) -> str:
    return f"{count} {'entry' if count == 1 else 'entries'}"
