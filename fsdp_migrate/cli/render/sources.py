"""Shows people what ``scan`` found and what ``rewrite`` does."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING

from rich.console import Console
from rich.filesize import decimal
from rich.syntax import Syntax
from rich.table import Table

from fsdp_migrate.cli.render.findings import COLOURS, FIDELITIES
from fsdp_migrate.cli.render.screen import console, escape, print_text
from fsdp_migrate.finding_codes import FINDING_CODES
from fsdp_migrate.findings import counted, listed
from fsdp_migrate.left_comments import MARK, ends_runs, stops_runs, what_they_stop
from fsdp_migrate.source.still_fsdp1 import said_of_still
from fsdp_migrate.source.surroundings import ConfigFound
from fsdp_migrate.source.uses import ACTIONS


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fsdp_migrate.source import RewriteReport, ScanReport, Use
    from fsdp_migrate.source.launchers import LaunchFound
    from fsdp_migrate.source.next_step import Step
    from fsdp_migrate.source.surroundings import CheckpointFound


_STYLES = {"rewritten": "green", "kept": "dim", "commented": "yellow", "mentioned": "dim", "unclear": "cyan"}
_STATES = {
    "changes": "would change",
    "fsdp2": "is FSDP2 already",
    "elsewhere": "stays: its settings stand in files or variables that it names",
    "unused": "stays: its framework does not read it",
    "refused": "[red]cannot be converted[/]",
    "unclear": "[yellow]not known[/]",
    "broken": "[red]cannot be read[/]",
}
_OFF = "stays: FSDP is off here"
_OWN = "stays:"
_ARGUMENTS = (
    "FSDP1's arguments: stay where a rewritten source, `plan` or `parity` reads them; for code that calls "
    "fully_shard itself `config` converts them"
)
_UNCLEAR = (
    "A model or its optimizer comes here from where it could not be followed. What is said below holds if it "
    "is the sharded one; if it is not, the line is right as it is."
)
_UNREAD = (
    "What is sharded goes here into code that is not read, or is asked for what is not known of DTensors. "
    "Look there, or try it in a short run: nothing is to be done where it works."
)
_IN_NOTEBOOK = "`rewrite` leaves notebooks alone. In a source it would become:"
_EXPORT = "weights alone, and apart from what runs go on from"
_BY_DATE = (
    "A file that git or a copy has put there anew has a new date: where one of FSDP1's is taken for FSDP2's, "
    "`fsdp-migrate inspect CKPT` says how it is loaded."
)
_SHOWN = 6
_PLACES = 3


def show_scan(report: ScanReport, *, everything: bool = False) -> None:
    """Show what is left to people, and what ``rewrite`` does; with ``everything`` each use, file by file."""
    out = console()
    for file in report.files:
        if file.problem:
            out.print(f"[red]{escape(file.problem)}[/]", soft_wrap=True)
    uses = report.uses
    if not uses:
        out.print(nothing_found(report))
        return
    if everything:
        for use in uses:
            out.print(_line(use), soft_wrap=True)
        out.print()
        out.print(_summary(report))
    else:
        _show_what_is_left(uses)
    files = len({use.path for use in uses})
    out.print(f"{counted(len(uses), 'use')} in {counted(files, 'file')} of {report.num_files:,}.")


def show_still(still: str, *, aside: bool = False) -> None:
    """Show, as the last of all, what is said of what still trains with FSDP1."""
    if still:
        console(aside=aside).print(f"[bold yellow]{escape(still)}[/]", soft_wrap=True)


def nothing_found(report: ScanReport) -> str:
    """Return what is said where no file holds FSDP1, as far as files could be read."""
    if report.num_read or not report.num_files:
        return f"No FSDP1 in {counted(report.num_read, 'file')}."
    return f"Nothing is known of {counted(report.num_files, 'file')}."


def _show_what_is_left(uses: Sequence[Use]) -> None:
    """Show by hand what has to be done by hand, what matters most first; the rest is counted."""
    out = console()
    by_hand = [use for use in uses if use.is_for_people]
    by_hand.sort(key=lambda use: _urgency(use.code))
    if by_hand:
        out.print(f"[bold]To be done by hand: {counted(len(by_hand), 'place')}[/]")
        _show_groups(out, by_hand, _PLACES)
        out.print(f"`fsdp-migrate explain {by_hand[0].code}` says what a code means and what to do.\n")
    _show_what_is_unclear(uses)
    rewritten = Counter(use.code for use in uses if use.action == "rewritten" and not use.is_left_alone)
    if rewritten:
        out.print(f"[bold]Done by `fsdp-migrate rewrite`: {counted(rewritten.total(), 'use')}[/]")
    for code, count in sorted(rewritten.items()):
        print_text(out, FINDING_CODES[code].summary, indent=" " * 15, first=f"{count:>5} x {code}  ")
    others = [use for use in uses if _is_another_number(use)]
    if others:
        out.print(f"[bold]Other numbers than before: {counted(len(others), 'place')}[/]")
        _show_groups(out, others, _PLACES)
    named = sum(use.action in {"commented", "rewritten", "unclear"} for use in uses) + len(others)
    if rest := len(uses) - named:
        needs = "need" if rest > 1 else "needs"
        out.print(f"{counted(rest, 'more use')} {needs} no action; --all shows every use.")


def _show_what_is_unclear(uses: Sequence[Use]) -> None:
    """Show what is to be looked at: first what could not be followed."""
    unclear = [use for use in uses if use.action == "unclear"]
    if not unclear:
        return
    # Files that hold FSDP come first.
    near = {use.path for use in uses if use.action != "unclear"}
    unclear.sort(key=lambda use: use.path not in near)
    out = console()
    out.print(f"[bold]To be looked at: {counted(len(unclear), 'place')}[/]")
    unread = [use for use in unclear if use.code == "FM454"]
    for meant, some in ((_UNCLEAR, [use for use in unclear if use.code != "FM454"]), (_UNREAD, unread)):
        if some:
            print_text(out, meant, indent="  ")
            _show_groups(out, some, len(some))
    out.print()


def _urgency(code: str) -> tuple[bool, bool, int]:
    """Rank what is left to people: what stops a run comes first, what is as before last."""
    return not stops_runs(code), not ends_runs(code), FIDELITIES.index(FINDING_CODES[code].fidelity)


def _is_another_number(use: Use) -> bool:
    """Tell whether a use stays, and what it counts comes out otherwise: ``p.numel()`` that is printed."""
    return use.action == "kept" and use.code == "FM334"


def _show_groups(out: Console, uses: Sequence[Use], most: int) -> None:
    """Show uses of which the same is to be said together, ``most`` places by name."""
    groups: dict[tuple[str, str], list[Use]] = {}
    for use in uses:
        groups.setdefault((use.code, use.note or use.becomes), []).append(use)
    for (code, becomes), found in groups.items():
        colour = COLOURS[FINDING_CODES[code].fidelity]
        places = ", ".join(use.place for use in found[:most])
        more = f" and {counted(len(found) - most, 'more place')}" if len(found) > most else ""
        texts = listed(dict.fromkeys(use.text for use in found), _PLACES, between="; ")
        out.print(f"  [bold]{escape(places)}[/]{more}: [{colour}]{code}[/] {escape(texts)}", soft_wrap=True)
        told = f"{_IN_NOTEBOOK} {becomes}" if any(use.is_left_alone for use in found) else becomes
        print_text(out, told, indent="    ")


def show_surroundings(
    configs: Sequence[ConfigFound],
    launches: Sequence[LaunchFound],
    checkpoints: Sequence[CheckpointFound],
    *,
    everything: bool = False,
) -> None:
    """Show the configs, launch lines and checkpoints that were found."""
    if configs or launches:
        _show_configs(configs, launches, everything=everything)
    if checkpoints:
        _show_checkpoints(checkpoints, everything=everything)


def show_work(steps: Sequence[Step], blocked: Sequence[str]) -> None:
    """Show what to do, in order of work, how much it is, and what cannot be migrated."""
    out = console()
    if steps:
        out.print("[bold]What to do[/]")
    for number, step in enumerate(steps, 1):
        print_text(out, step.text, indent="   ", first=f"{number}. ")
        for command in step.commands[:_SHOWN]:
            out.print(f"   {escape(command)}", soft_wrap=True)
        if len(step.commands) > _SHOWN:
            out.print(f"   and likewise for {len(step.commands) - _SHOWN} more")
    if blocked:
        out.print("[bold]Turned by no command[/]; what takes its place is said below")
        for text in blocked:
            print_text(out, text, indent="  ")
    elif steps:
        out.print("Nothing was found that cannot be migrated.")
    if steps or blocked:
        out.print()


def _show_configs(
    configs: Sequence[ConfigFound], launches: Sequence[LaunchFound], *, everything: bool
) -> None:
    """Show what configs and launch lines are; of many of which the same is to be said, some are named."""
    out = console()
    out.print("\n[bold]Configs[/]")
    rows = [(config.path, config) for config in configs] + [(launch.place, launch) for launch in launches]
    groups: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for place, each in rows:
        holds = each.state == "changes" and isinstance(each, ConfigFound) and each.holds_arguments
        state = _ARGUMENTS if holds else _STATES[each.state]
        # The frameworks say why they read nothing; of a switch of the project's own it is seen.
        is_off = (each.framework, each.state) == ("none", "unused")
        said = f"{each.framework}: {state}" if each.framework else state
        said = _OFF if is_off else said
        if each.state == "elsewhere" and each.message:
            said = f"{each.framework}: stays:"
        if each.state == "unclear":
            said = _OWN if each.is_own else f"{said}:"  # a sentence of its own follows
        alike = place if everything else each.message.replace(place, "")
        groups.setdefault((said, alike), []).append((place, each.message))
    for (said, _), found in groups.items():
        places = ", ".join(place for place, _ in found[:_PLACES])
        more = f" and {len(found) - _PLACES:,} more (--all names them)" if len(found) > _PLACES else ""
        out.print(f"{escape(places)}{more}: {said} {escape(found[0][1])}".rstrip())


def _show_checkpoints(checkpoints: Sequence[CheckpointFound], *, everything: bool) -> None:
    """Show the latest checkpoint of each run; the others are counted."""
    out = console()
    out.print("\n[bold]Checkpoints[/]")
    shown = [each for each in checkpoints if everything or each.is_latest]
    for each in shown:
        done = f", converted already: {each.target}" if each.is_converted else ""
        if each.is_fsdp2s:
            done = ", taken for FSDP2's: saved since the sources and configs were turned, or converted"
        done = f", {_EXPORT}{done}" if each.is_export else done
        read = f", named in {', '.join(each.read_by)}" if each.read_by else ""
        text = f"{each.path}: {each.layout}, {decimal(each.nbytes)}{read}{done}"
        print_text(out, text, indent="  ", first="")
    if any(each.is_fsdp2s for each in shown):
        print_text(out, _BY_DATE, indent="", first="")
    if rest := len(checkpoints) - len(shown):
        out.print(
            f"{counted(rest, 'older one')} of the same runs; --all shows {'it' if rest == 1 else 'them'}."
        )


def _line(use: Use) -> str:
    style = _STYLES[use.action]
    what = f"{use.code} [{style}]{use.action:9}[/] {escape(use.text)}"
    return f"[bold]{escape(use.place)}[/]: {what} [dim]->[/] {escape(use.becomes)}"


def _summary(report: ScanReport) -> Table:
    table = Table("rule", *ACTIONS, box=None)
    for rule, counts in report.by_rule.items():
        table.add_row(rule, *(str(counts[action] or "") for action in ACTIONS))
    return table


def show_rewriting(
    report: RewriteReport,
    lacking: Sequence[str] | None = None,
    settings: str = "",
    *,
    is_checked: bool,
    diff: bool,
) -> None:
    """Show the changes as a diff, alone on stdout, or the names of the files; what went wrong on stderr.

    Args:
        report: What was rewritten.
        lacking: The files of requirements that do not name fsdp-migrate; None where that is no fault.
        settings: What is to be said of settings that still ask for FSDP1.
        is_checked: Whether something in the project stops a run at the comments that are left.
        diff: Show the diff.
    """
    out = console(aside=diff)
    wrong = console(aside=True)
    for file in report.changed:
        if diff:
            _show_diff(file.diff)
        elif report.written:
            out.print(f"{escape(file.path)} [dim](before: {escape(file.backup or '')})[/]", soft_wrap=True)
        else:
            out.print(f"would change: {escape(file.path)}", soft_wrap=True)
    for file in report.problems:
        wrong.print(f"[red]{escape(file.problem or '')}[/]", soft_wrap=True)
    done = "changed" if report.written else "would change"
    out.print(f"{counted(len(report.changed), 'file')} of {report.num_files:,} {done}.")
    if report.changed:
        out.print(" ".join(_what_is_left(report, is_checked=is_checked)), soft_wrap=True)
    if lacking is not None:
        where = listed(lacking, _PLACES) if lacking else "what the project installs"
        text = f"The rewritten sources import fsdp_migrate: add `fsdp-migrate` to {where}."
        out.print(escape(text), soft_wrap=True)
    said = said_of_still(report.still, is_checked=is_checked, is_mixed=report.is_mixed)
    show_still(said, aside=diff)
    if settings:
        out.print(escape(settings), soft_wrap=True)


def _what_is_left(report: RewriteReport, *, is_checked: bool) -> Iterator[str]:
    """Say how many comments there are, with which codes, which of them stop a run, and what comes next."""
    if left := report.left:
        counts = ", ".join(f"{code} ({count})" for code, count in sorted(left.items()))
        yield f"To be settled by hand: {counted(left.total(), 'comment')} `{MARK}...`: {counts}."
        yield what_they_stop(left, is_checked=is_checked)
        yield f"`fsdp-migrate explain {min(sorted(left), key=_urgency)}` says what to do."
    if report.unclear:
        places = listed((use.place for use in report.unclear), _SHOWN)
        yield (f"Look at {places} too: `fsdp-migrate scan` says what to do if that model is the sharded one.")
    if report.written:
        yield "`fsdp-migrate scan` says what comes next, of configs and checkpoints too."
    else:
        yield "Nothing was written: --write changes the files, and keeps a backup of each."


def _show_diff(text: str) -> None:
    """Write a diff to stdout, where `git apply` can read it; coloured on a terminal."""
    if sys.stdout.isatty():
        Console(highlight=False).print(Syntax(text, "diff", background_color="default"))
    else:
        sys.stdout.write(text)
        sys.stdout.flush()
