"""What ``scan`` found as a SARIF log, which code hosts show beside the lines of a pull request."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from fsdp_migrate.explanations import EXPLANATIONS


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fsdp_migrate.source.launchers import LaunchFound
    from fsdp_migrate.source.pins import PinFound
    from fsdp_migrate.source.surroundings import ConfigFound
    from fsdp_migrate.source.uses import ScanReport, Use


_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_ROOT = "%SRCROOT%"
_OTHER_RULES = {
    "fsdp1-config": ("Settings of FSDP1 in a config.", "`fsdp-migrate config PATH` shows what they become."),
    "fsdp1-launch": (
        "A launch line that asks for FSDP1.",
        "`fsdp-migrate config --command '...'` prints the line for FSDP2.",
    ),
    "old-requirement": ("A requirement that keeps out what FSDP2 needs.", "Raise it."),
    "not-read": ("A source that could not be read.", "See the message."),
}


@dataclass(frozen=True)
class _Result:
    """One result: the rule, how grave it is, what it says, and where."""

    rule: str
    level: str
    text: str
    path: str
    line: int = 1
    column: int = 1


def sarif_log(
    report: ScanReport,
    configs: Sequence[ConfigFound] = (),
    launches: Sequence[LaunchFound] = (),
    pins: Sequence[PinFound] = (),
) -> dict[str, Any]:
    """Return a log in the form of SARIF 2.1.0 (OASIS): what is to be changed, and where.

    What is right as it is, and FSDP1 in comments and strings, is left out. What ``rewrite`` turns is a note,
    what somebody must settle a warning, what cannot be migrated an error. Paths are relative to the current
    folder where they lie below it. A place in a notebook is named in the text, for a cell has no line of its
    file.

    Args:
        report: What was found in sources.
        configs: The configs that were found.
        launches: The launch lines that were found.
        pins: The requirements that keep out what FSDP2 needs.

    Example:
        >>> from fsdp_migrate.source import scan_paths
        >>> sarif_log(scan_paths(["fsdp_migrate/source/catalog.py"]))["runs"][0]["results"]
        []
    """
    results = [*_of_sources(report), *_of_configs(configs), *_of_launches(launches), *_of_pins(pins)]
    ids = sorted({result.rule for result in results})
    driver = {
        "name": "fsdp-migrate",
        "version": version("fsdp-migrate"),
        "rules": [_rule(name) for name in ids],
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {_ROOT: {"uri": f"{Path.cwd().as_uri()}/"}},
        "results": [_as_dict(result, ids.index(result.rule)) for result in results],
    }
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}


def _of_sources(report: ScanReport) -> Iterator[_Result]:
    for use in report.uses:
        if use.action in {"rewritten", "commented"}:
            yield _of_use(use)
    for file in report.files:
        if file.problem is not None:
            yield _Result("not-read", "warning", file.problem, file.path)


def _of_use(use: Use) -> _Result:
    is_refused = EXPLANATIONS[use.code].fidelity == "refused"
    level = (
        "note"
        if use.action == "rewritten" and not use.is_left_alone
        else "error"
        if is_refused
        else "warning"
    )
    text = f"{use.text} -> {use.becomes}"
    if use.cell is not None:
        return _Result(use.code, level, f"Cell {use.cell}, line {use.line}: {text}", use.path)
    return _Result(use.code, level, text, use.path, use.line, use.column)


def _of_configs(configs: Sequence[ConfigFound]) -> Iterator[_Result]:
    for found in configs:
        if found.state == "changes":
            text = f"Settings of FSDP1 ({found.framework}): `fsdp-migrate config` converts them."
            yield _Result("fsdp1-config", "note", text, found.path)
        elif found.state not in {"fsdp2", "elsewhere", "unused"}:
            yield _Result("fsdp1-config", "warning", found.message, found.path)


def _of_launches(launches: Sequence[LaunchFound]) -> Iterator[_Result]:
    for found in launches:
        if found.state in {"changes", "refused"}:
            level = "note" if found.state == "changes" else "warning"
            text = found.message or f"FSDP1 ({found.framework}): `fsdp-migrate config --command` converts it."
            if found.cell is not None:
                yield _Result(
                    "fsdp1-launch", level, f"Cell {found.cell}, line {found.line}: {text}", found.path
                )
            else:
                yield _Result("fsdp1-launch", level, text, found.path, found.line)


def _of_pins(pins: Sequence[PinFound]) -> Iterator[_Result]:
    for pin in pins:
        text = f"{pin.requirement} keeps out {pin.package} {pin.needed}, the first version that runs FSDP2."
        yield _Result("old-requirement", "warning", text, pin.path, pin.line)


def _rule(name: str) -> dict[str, Any]:
    if name in EXPLANATIONS:
        found = EXPLANATIONS[name]
        means, more = found.means, f"{found.why} {found.action}"
    else:
        means, more = _OTHER_RULES[name]
    plain = means.replace("`", "")
    return {
        "id": name,
        "shortDescription": {"text": plain},
        "help": {"text": more.replace("`", ""), "markdown": more},
    }


def _as_dict(result: _Result, index: int) -> dict[str, Any]:
    place = {
        "artifactLocation": _artifact(result.path),
        "region": {"startLine": result.line, "startColumn": result.column},
    }
    return {
        "ruleId": result.rule,
        "ruleIndex": index,
        "level": result.level,
        "message": {"text": result.text},
        "locations": [{"physicalLocation": place}],
    }


def _artifact(path: str) -> dict[str, str]:
    where, here = Path(path).absolute(), Path.cwd()
    if where.is_relative_to(here):
        return {"uri": quote(os.fsencode(where.relative_to(here).as_posix())), "uriBaseId": _ROOT}
    return {"uri": where.as_uri()}
