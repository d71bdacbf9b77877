"""The reports of ``verify``: two checkpoints compared, or one checked in itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.filesize import decimal

from fsdp_migrate.cli.pages.parts import findings_tables, make_report
from fsdp_migrate.findings import counted
from fsdp_migrate.report.model import Badge, Facts, Name, Table


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fsdp_migrate.checkpoint_convert import CheckReport, VerifyReport
    from fsdp_migrate.report.model import Cell, Report


def verification_report(report: VerifyReport) -> Report:
    """Return the report of a comparison of two checkpoints."""
    values = counted(report.values, "other value")
    held = f"{counted(report.tensors, 'tensor')} ({decimal(report.nbytes)}) and {values}"
    most = "" if report.is_complete else "at least "
    found = counted(len(report.differences), "difference")
    alike = f", {counted(len(report.alike), 'setting')} in another form" if report.alike else ""
    same = " All tensors are the same, bit for bit." if report.are_tensors_same else ""
    verdict = (
        f"The same: {held}, bit for bit{alike}."
        if report.is_same
        else f"Different: {most}{found}, of {held}.{same}"
    )
    sections = (
        Facts("What was compared", tuple(_facts(report))),
        _differences(report),
        _pairs("Under another name in the second", ("in the first", "in the second"), report.renamed),
        _pairs("Cast before they were compared, as asked", ("tensor", "to"), report.cast),
        _names("Not compared: the other keeps such things elsewhere", report.aside),
        _pairs("Alike, in another form", ("setting", "first and second"), report.alike),
    )
    return make_report("fsdp-migrate verify", verdict, "good" if report.is_same else "bad", sections, {})


def check_report(report: CheckReport) -> Report:
    """Return the report of one checkpoint that was checked."""
    damages = counted(len(report.damages), "file or entry", "files and entries")
    verdict = "Whole: nothing is damaged." if report.is_whole else f"Damaged: {damages}."
    rows = tuple((Name(key), text) for key, text in report.damages.items())
    sections = (
        Facts("What was checked", tuple(_checked(report))),
        Table("Damage", ("file or entry", "what is wrong"), rows) if rows else None,
        *findings_tables(finding.as_dict() for finding in report.findings),
    )
    return make_report("fsdp-migrate verify", verdict, "good" if report.is_whole else "bad", sections, {})


def _facts(report: VerifyReport) -> Iterator[tuple[str, Cell]]:
    yield "first", Name(report.src)
    yield "second", Name(report.dst)
    yield "tensors", f"{report.tensors:,} ({decimal(report.nbytes)})"
    yield "other values", f"{report.values:,}"
    if not report.is_complete:
        yield "there may be more", "The comparison stopped at the differences below."


def _checked(report: CheckReport) -> Iterator[tuple[str, Cell]]:
    yield "checkpoint", Name(report.source)
    yield "entries compared with the files", f"{report.entries:,}"
    yield "items read", f"{report.items:,}"
    yield "agree with their checksums", decimal(report.nbytes)
    yield "have no checksum", decimal(report.unprotected)
    hashed = report.hashed_files
    yield "files compared with SHA256SUMS", "there is no such file" if hashed is None else f"{hashed:,}"


def _differences(report: VerifyReport) -> Table | None:
    if report.is_same:
        return None
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (Name(each.key), Badge(each.kind, "bad"), each.message) for each in report.differences
    )
    return Table("Differences", ("entry", "what", "how it differs"), rows)


def _pairs(title: str, columns: tuple[str, str], found: Mapping[str, str]) -> Table | None:
    rows = tuple((Name(one), Name(other)) for one, other in found.items())
    return Table(title, columns, rows, folded=True) if rows else None


def _names(title: str, found: tuple[str, ...]) -> Table | None:
    return Table(title, ("entry",), tuple((Name(each),) for each in found), folded=True) if found else None
