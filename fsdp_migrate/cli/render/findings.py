"""Findings as people see them: what needs action first, and by default nothing else."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from fsdp_migrate.cli.render.paragraphs import set_lines
from fsdp_migrate.cli.render.screen import console, print_text
from fsdp_migrate.finding_codes import FINDING_CODES
from fsdp_migrate.findings import listed
from fsdp_migrate.visible import printable


if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.console import Console

    Findings = Sequence[Mapping[str, Any]]


# What matters most comes first.
FIDELITIES = ("refused", "changed", "equivalent", "obsolete", "exact")
COLOURS = {"exact": "green", "equivalent": "green", "obsolete": "dim", "changed": "yellow", "refused": "red"}
NEED_ACTION = frozenset({"refused", "changed"})
MOST_OF_ONE_CODE = 8
_OF_EVERY_EXPORT = frozenset({("FM212", "to='hf'"), ("FM257", "hf")})
_WIDEST = max(map(len, FIDELITIES))


def show_findings(
    findings: Iterable[Mapping[str, Any]], *, everything: bool = False, aside: bool = False
) -> None:
    """Show findings: the subject, what happens, what to do. Equal ones are told once, with all subjects.

    Args:
        findings: The findings, as plain data.
        everything: Also those that need no action.
        aside: On stderr, because stdout holds what the command has made.
    """
    shown, rest = _divide(findings, everything=everything)
    out = console(aside=aside)
    groups: dict[tuple[str, str, str], list[str]] = {}
    for finding in shown:
        key = (finding["code"], finding["message"], finding["hint"] or "")
        groups.setdefault(key, []).append(finding["subject"])
    for (code, message, hint), subjects in groups.items():
        _head(out, code, listed(subjects, MOST_OF_ONE_CODE))
        for text in filter(None, (message, hint)):
            print_text(out, text, indent="  ")
    _end(out, shown, rest)


def show_named_findings(
    findings: Iterable[Mapping[str, Any]], source: str, *, everything: bool = False
) -> None:
    """Show findings about a checkpoint by code: what each code means, and what it was found of.

    Args:
        findings: The findings, as plain data.
        source: The checkpoint; what is found of all of it needs no name.
        everything: Also those that need no action.
    """
    shown, rest = _divide(findings, everything=everything)
    out = console()
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for finding in shown:
        groups.setdefault(finding["code"], []).append(finding)
    for code, found in groups.items():
        _head(out, code, FINDING_CODES[code].summary)
        for finding in found[:MOST_OF_ONE_CODE]:
            print_text(out, _detail(finding, source), indent="    ", first="  - ")
        if len(found) > MOST_OF_ONE_CODE:
            out.print(f"  and {len(found) - MOST_OF_ONE_CODE} more; --json names them")
    _end(out, shown, rest)


def is_of_every_export(finding: Mapping[str, Any]) -> bool:
    """Tell whether it says that published weights are without a run's optimizer and state, as all are."""
    return (finding["code"], finding["subject"]) in _OF_EVERY_EXPORT


def _divide(findings: Iterable[Mapping[str, Any]], *, everything: bool) -> tuple[Findings, Findings]:
    """Return what is to be shown, what matters most first, and the rest."""
    ordered = sorted(findings, key=lambda finding: FIDELITIES.index(finding["fidelity"]))
    if everything:
        return ordered, []
    needed = [e for e in ordered if e["fidelity"] in NEED_ACTION and not is_of_every_export(e)]
    return needed, [each for each in ordered if each not in needed]


def _head(out: Console, code: str, text: str) -> None:
    fidelity = FINDING_CODES[code].fidelity
    out.print(f"[{COLOURS[fidelity]}]{fidelity:<{_WIDEST}}[/]  [bold]{code}[/]", end="  ")
    indent = " " * (_WIDEST + 2 + len(code) + 2)
    # The first line has what stands before it, too: it is set with the indent, and printed without.
    first, *more = set_lines(printable(text), width=out.width, indent=indent, first=indent)
    for line in (first.removeprefix(indent), *more):
        out.print(line, markup=False, soft_wrap=True)


def _detail(finding: Mapping[str, Any], source: str) -> str:
    subject = "" if finding["subject"] == source else f"{finding['subject']}: "
    hint = f" {finding['hint']}" if finding["hint"] else ""
    return f"{subject}{finding['message']}{hint}"


def _end(out: Console, shown: Findings, rest: Findings) -> None:
    """Say what is not shown, and where there is more about what is."""
    if rest:
        counts = Counter(finding["fidelity"] for finding in rest)
        listed = ", ".join(f"{counts[word]} {word}" for word in FIDELITIES if counts[word])
        one = len(rest) == 1
        more = " more" if shown else ""
        needs, them = ("finding needs", "it") if one else ("findings need", "them")
        print_text(out, f"{len(rest)}{more} {needs} no action ({listed}); --all shows {them}.")
    codes = dict.fromkeys(finding["code"] for finding in shown if finding["fidelity"] in NEED_ACTION)
    if codes:
        print_text(out, f"`fsdp-migrate explain {next(iter(codes))}` says what a code means and what to do.")
