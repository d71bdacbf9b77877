"""The report of ``doctor``: the known faults that are there, what was seen of each, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdp_migrate.cli.pages.parts import make_report
from fsdp_migrate.findings import counted
from fsdp_migrate.report.model import Facts, Link, Name, Notes, Table


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fsdp_migrate.doctor import Diagnosis, Symptom
    from fsdp_migrate.report.model import Cell, Report, Tone


def doctor_report(diagnosis: Diagnosis, given: Mapping[str, str | None]) -> Report:
    """Return the report of a diagnosis.

    Args:
        diagnosis: What the doctor saw.
        given: What it was given to look at, by kind.
    """
    found = len(diagnosis.symptoms)
    problem = diagnosis.problem
    sections = (
        Notes("The model cannot be planned", (problem,)) if problem else None,
        _faults(diagnosis),
        Facts("What was looked at", tuple(_facts(diagnosis, given))),
    )
    verdict = f"{counted(found, 'known fault')} of the {diagnosis.num_looked_for} that were looked for."
    if problem:
        verdict = f"The model cannot be planned; {verdict}"
    tone: Tone = "bad" if problem else "warning" if found else "good"
    return make_report("fsdp-migrate doctor", verdict, tone, sections, diagnosis.versions)


def _faults(diagnosis: Diagnosis) -> Table | None:
    if not diagnosis.symptoms:
        return None
    columns = ("fault", "what goes wrong", "seen here", "what to do", "versions", "thread")
    return Table("Known faults that are there", columns, tuple(map(_row, diagnosis.symptoms)))


def _row(symptom: Symptom) -> tuple[Cell, ...]:
    fault = symptom.fault
    thread: Cell = Link(fault.link, fault.url) if fault.url else "measured by us"
    return Name(fault.name), fault.says, symptom.seen, fault.action, fault.versions, thread


def _facts(diagnosis: Diagnosis, given: Mapping[str, str | None]) -> Iterator[tuple[str, Cell]]:
    yield "looked at", ", ".join(diagnosis.looked_at)
    yield from ((what, Name(name)) for what, name in given.items() if name)
    yield (
        "faults that are known",
        f"{diagnosis.num_known}, of which {diagnosis.num_looked_for} can show there",
    )
    dates = {each.fault.looked_up for each in diagnosis.symptoms}
    if dates:
        yield "threads looked up", ", ".join(sorted(dates))
