"""Parts that reports of several commands have: findings, sizes, and what made the report."""

from __future__ import annotations

import platform
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from rich.filesize import decimal

from fsdp_migrate.cli.render.findings import FIDELITIES, NEED_ACTION
from fsdp_migrate.cli.typed import command_line
from fsdp_migrate.findings import counted
from fsdp_migrate.report.model import Badge, Code, Name, Number, Report, Table
from fsdp_migrate.versions import installed_versions, own_version


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from fsdp_migrate.report.model import Cell, Section, Tone


TONES: dict[str, Tone] = {
    "refused": "bad",
    "changed": "warning",
    "equivalent": "neutral",
    "obsolete": "neutral",
    "exact": "good",
}
_COLUMNS = ("what", "code", "about", "what happens", "what to do")


def make_report(
    title: str, verdict: str, tone: Tone, sections: Iterable[Section | None], versions: Mapping[str, str]
) -> Report:
    """Return a report with the versions that took part, the command that repeats it, and the time.

    Args:
        title: What was done.
        verdict: What came of it.
        tone: Whether that is good.
        sections: The rest; None where there is nothing to say.
        versions: What the result itself knows of versions, and is true rather than what is installed here.
    """
    here = {"python": platform.python_version(), "fsdp-migrate": own_version()}
    known = {**here, **dict(installed_versions()), **versions}
    return Report(
        title=title,
        verdict=verdict,
        tone=tone,
        sections=tuple(section for section in sections if section is not None),
        versions=tuple(known.items()),
        command=command_line(),
        made=f"Made on {datetime.now(timezone.utc):%Y-%m-%d at %H:%M} UTC.",
    )


def findings_tables(findings: Iterable[Mapping[str, Any]], title: str = "Findings") -> Iterator[Table]:
    """Yield findings as tables: those that need action, and folded those that need none."""
    ordered = sorted(findings, key=lambda finding: FIDELITIES.index(finding["fidelity"]))
    needed = [each for each in ordered if each["fidelity"] in NEED_ACTION]
    rest = ordered[len(needed) :]
    if needed:
        yield Table(title, _COLUMNS, tuple(map(_row, needed)))
    if rest:
        yield Table(f"{title}: what needs no action", _COLUMNS, tuple(map(_row, rest)), folded=True)


def _row(finding: Mapping[str, Any]) -> tuple[Cell, ...]:
    fidelity = finding["fidelity"]
    return (
        Badge(fidelity, TONES[fidelity]),
        Code(finding["code"]),
        Name(finding["subject"]),
        finding["message"],
        finding["hint"] or "",
    )


def size(nbytes: int) -> Number:
    """Return bytes as people read them."""
    return Number(nbytes, decimal(nbytes))


def count(number: int) -> Number:
    """Return a number with separators."""
    return Number(number, f"{number:,}")


def action_words(findings: Sequence[Mapping[str, Any]]) -> tuple[str, Tone]:
    """Say in a few words what findings ask for, and how grave that is."""
    refused = sum(finding["fidelity"] == "refused" for finding in findings)
    changed = sum(finding["fidelity"] == "changed" for finding in findings)
    if refused:
        return f"{counted(refused, 'thing')} cannot be migrated", "bad"
    if changed:
        return f"{counted(changed, 'thing')} would change", "warning"
    return "it trains as under FSDP1", "good"
