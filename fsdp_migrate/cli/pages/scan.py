"""The report of ``scan``: what to do, in order, and what was found of sources, configs and checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdp_migrate.cli.pages.parts import TONES, count, make_report, size
from fsdp_migrate.cli.render.findings import FIDELITIES
from fsdp_migrate.cli.render.sources import nothing_found
from fsdp_migrate.finding_codes import FINDING_CODES
from fsdp_migrate.findings import counted
from fsdp_migrate.report.model import Badge, Code, Commands, Facts, Name, Notes, Step, Steps, Table
from fsdp_migrate.source.uses import ACTIONS


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fsdp_migrate.report.model import Cell, Report, Tone
    from fsdp_migrate.source import ScanReport, Use
    from fsdp_migrate.source.launchers import LaunchFound
    from fsdp_migrate.source.next_step import Step as NextStep
    from fsdp_migrate.source.pins import PinFound
    from fsdp_migrate.source.surroundings import CheckpointFound, ConfigFound


_MEANS = {
    "rewritten": "`rewrite` turns it into FSDP2 code",
    "kept": "right as it is",
    "commented": "to be done by hand",
    "mentioned": "in a comment or a string",
    "unclear": "to be looked at: a model that could not be followed, or code that is not read",
}


def scan_report(
    paths: Sequence[str],
    report: ScanReport,
    configs: Sequence[ConfigFound],
    launches: Sequence[LaunchFound],
    pins: Sequence[PinFound],
    checkpoints: Sequence[CheckpointFound],
    steps: Sequence[NextStep],
    blocked: Sequence[str] = (),
) -> Report:
    """Return the report of a repository.

    Args:
        paths: What was scanned, as it was given.
        report: What was found in sources.
        configs: The configs that were found.
        launches: The launch lines that were found.
        pins: The requirements that keep out what FSDP2 needs.
        checkpoints: The checkpoints that were found.
        steps: What to do, in order.
        blocked: What no command turns.
    """
    needed = [use for use in report.uses if use.action in {"rewritten", "commented", "unclear"}]
    by_hand = sum(use.is_for_people for use in needed)
    refused = sum(FINDING_CODES[use.code].fidelity == "refused" for use in needed)
    sections = (
        Facts("What was scanned", tuple(_facts(paths, report))),
        Steps("What to do", tuple(Step(step.text, Commands(step.commands)) for step in steps))
        if steps
        else None,
        Notes("Turned by no command", tuple(blocked)) if blocked else None,
        _rules(report),
        _uses("To be done or looked at", needed),
        _settings(configs, launches),
        _pins(pins),
        _checkpoints(checkpoints),
        _problems(report),
        _uses("FSDP1 that needs no action", [use for use in report.uses if use not in needed], folded=True),
    )
    files = len({use.path for use in report.uses})
    found = f"{counted(len(report.uses), 'use')} of FSDP1 in {counted(files, 'file')} of {report.num_files:,}"
    written = sum(use.action == "rewritten" and not use.is_left_alone for use in needed)
    done = f"{written:,} by `fsdp-migrate rewrite`, {by_hand:,} by hand"
    verdict = f"{found}: {done}." if report.uses else nothing_found(report)
    tone: Tone = "bad" if refused else "warning" if steps else "good"
    return make_report("fsdp-migrate scan", verdict, tone, sections, {})


def _facts(paths: Sequence[str], report: ScanReport) -> Iterator[tuple[str, Cell]]:
    yield from (("path", Name(path)) for path in paths)
    yield "files read", f"{report.num_files:,}"
    totals = {action: sum(use.action == action for use in report.uses) for action in ACTIONS}
    yield from ((_MEANS[action], f"{number:,}") for action, number in totals.items())


def _rules(report: ScanReport) -> Table | None:
    if not report.uses:
        return None
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (Name(rule), *(count(counts[action]) for action in ACTIONS))
        for rule, counts in report.by_rule.items()
    )
    return Table("Uses by rule", ("rule", *ACTIONS), rows, numbers=frozenset(ACTIONS))


def _uses(title: str, uses: Sequence[Use], *, folded: bool = False) -> Table | None:
    if not uses:
        return None
    columns = ("where", "what", "code", "is", "becomes", "fidelity")
    ordered = sorted(uses, key=_weight)
    return Table(f"{title}: {len(uses):,}", columns, tuple(map(_use, ordered)), folded=folded)


def _weight(use: Use) -> tuple[bool, int]:
    """What somebody has to do by hand comes first, and of that what cannot be migrated."""
    return not use.is_for_people, FIDELITIES.index(FINDING_CODES[use.code].fidelity)


def _use(use: Use) -> tuple[Cell, ...]:
    fidelity = FINDING_CODES[use.code].fidelity
    action = Badge(use.action, "warning" if use.is_for_people else "neutral")
    return (
        Name(use.place),
        action,
        Code(use.code),
        Name(use.text),
        use.note or use.becomes,
        Badge(fidelity, TONES[fidelity]),
    )


def _settings(configs: Sequence[ConfigFound], launches: Sequence[LaunchFound]) -> Table | None:
    found = [(config.path, config) for config in configs] + [(launch.place, launch) for launch in launches]
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (Name(where), each.framework, Badge(each.state, _state_tone(each.state)), each.message)
        for where, each in found
    )
    return Table("Configs and launch lines", ("where", "framework", "state", "more"), rows) if rows else None


def _state_tone(state: str) -> Tone:
    return (
        "bad"
        if state in {"refused", "broken"}
        else "warning"
        if state in {"changes", "unclear"}
        else "neutral"
    )


def _pins(pins: Sequence[PinFound]) -> Table | None:
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (Name(f"{pin.path}:{pin.line}"), Name(pin.requirement), f"{pin.package} {pin.needed} or later")
        for pin in pins
    )
    columns = ("where", "requirement", "what FSDP2 needs")
    return Table("Requirements that keep FSDP2 out", columns, rows) if rows else None


def _checkpoints(checkpoints: Sequence[CheckpointFound]) -> Table | None:
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (
            Name(each.path),
            each.layout,
            size(each.nbytes),
            "latest" if each.is_latest else "older",
            Name(each.target) if each.is_converted else "",
            ", ".join(f"`{place}`" for place in each.read_by),
        )
        for each in checkpoints
    )
    columns = ("where", "layout", "bytes", "of its run", "converted already", "named in")
    return Table("Checkpoints", columns, rows, numbers=frozenset({"bytes"})) if rows else None


def _problems(report: ScanReport) -> Table | None:
    rows = tuple((Name(file.path), file.problem) for file in report.files if file.problem)
    return Table("Could not be read", ("file", "why"), rows) if rows else None
