"""The command ``scan``. Nothing here loads torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import typer

from fsdp_migrate.cli.document import write_document, write_json
from fsdp_migrate.cli.options import All, Html, Json, Markdown, Paths, Sarif, Strict


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from fsdp_migrate.source.launchers import LaunchFound
    from fsdp_migrate.source.steps import Done, Scripts
    from fsdp_migrate.source.surroundings import CheckpointFound, ConfigFound
    from fsdp_migrate.source.uses import ScanReport


def scan(
    paths: Paths,
    everything: All = False,
    strict: Strict = False,
    html: Html = None,
    markdown: Markdown = None,
    json: Json = False,
    sarif: Sarif = False,
) -> int:
    """Find FSDP1 in Python sources and notebooks, in configs and checkpoints, and say what to do.

    Nothing is imported, run or changed. What .gitignore names is left out.
    """
    _check_outputs(paths, json=json, sarif=sarif)
    from fsdp_migrate.cli.pages.output import wanted_pages
    from fsdp_migrate.cli.pages.scan import scan_report
    from fsdp_migrate.cli.render.sources import show_scan, show_still, show_surroundings, show_work
    from fsdp_migrate.source import scan_paths
    from fsdp_migrate.source.asked_around import missing_configs
    from fsdp_migrate.source.composer_project import name_callback
    from fsdp_migrate.source.found_models import find_models
    from fsdp_migrate.source.launchers import find_launches
    from fsdp_migrate.source.pins import find_pins, has_trainers_launched, packages_of, without_ours
    from fsdp_migrate.source.prepared_apart import find_prepared_apart
    from fsdp_migrate.source.sarif import sarif_log
    from fsdp_migrate.source.steps import are_turned, next_steps, not_migrated
    from fsdp_migrate.source.still_fsdp1 import still_fsdp1
    from fsdp_migrate.source.surroundings import call_prepare, find_configs, look_for_comments

    pages = wanted_pages(html, markdown)
    report = scan_paths(paths)
    launches = find_launches(paths)
    done: Done = {"is_prepared": call_prepare(paths), "is_called_back": name_callback(paths)}
    configs = find_configs(paths, launches)
    checkpoints = _checkpoints(paths, are_turned=are_turned(report, configs, launches, **done))
    frameworks = [*_asking([*configs, *launches])]
    is_launched = has_trainers_launched(report, frameworks)
    pins = find_pins(paths, packages := packages_of(report, frameworks), has_trainers_launched=is_launched)
    is_checked = look_for_comments(paths)
    steps = next_steps(
        *(paths, report, configs, checkpoints, launches, pins, find_models(paths)),
        **done,
        is_checked=is_checked,
        lacking=without_ours(paths),
        **_of_scripts(paths, report, done),
        **missing_configs(paths),
        apart=find_prepared_apart(paths, report, frameworks) if "accelerate" in packages else None,
    )
    said = _said_of_still(report, paths, is_checked=is_checked)
    blocked, log = not_migrated(report, configs, launches), sarif_log(report, configs, launches, pins)
    if sarif:
        write_json(log)
    elif json:
        found: dict[str, Sequence[_Reported]] = {"configs": configs, "launches": launches, "pins": pins}
        found |= {"checkpoints": checkpoints, "steps": steps, "still_fsdp1": still_fsdp1(report.uses)}
        write_document("scan", {**report.as_dict(), **_as_dicts(found), "not_migrated": blocked})
    else:
        show_work(steps, blocked)
        show_scan(report, everything=everything)
        show_surroundings(configs, launches, checkpoints, everything=everything)
        show_still(said)
    found_all = (configs, launches, pins, checkpoints, steps, [*blocked, *filter(None, [said])])
    pages.write(lambda: scan_report(paths, report, *found_all), aside=json or sarif)
    return 3 if strict and log["runs"][0]["results"] else 0


def _of_scripts(paths: Paths, report: ScanReport, done: Done) -> Scripts:
    """Return the scripts that train, and the places where such end their process group."""
    from fsdp_migrate.source.ended_groups import ended_groups
    from fsdp_migrate.source.training_scripts import texts_of, training_scripts

    texts = texts_of(paths) if report.uses or done["is_prepared"] else {}
    return {"scripts": training_scripts(texts, report), "ends": ended_groups(texts)}


def _said_of_still(report: ScanReport, paths: Paths, *, is_checked: bool) -> str:
    from fsdp_migrate.source.left_whole import are_mixed
    from fsdp_migrate.source.still_fsdp1 import is_turned, said_of_still, still_fsdp1

    still = still_fsdp1(report.uses)
    is_checked = is_checked or any(map(is_turned, report.uses))
    return said_of_still(still, is_checked=is_checked, is_mixed=are_mixed(still, report.uses, paths))


class _Reported(Protocol):
    def as_dict(self) -> dict[str, Any]: ...


def _as_dicts(found: Mapping[str, Sequence[_Reported]]) -> dict[str, list[dict[str, Any]]]:
    return {name: [each.as_dict() for each in row] for name, row in found.items()}


def _asking(found: Iterable[ConfigFound | LaunchFound]) -> Iterator[str]:
    """Yield the frameworks that are asked for something: `fsdp:` without a value asks for nothing."""
    return (each.framework for each in found if each.state != "unused")


def _check_outputs(paths: Paths, *, json: bool, sarif: bool) -> None:
    if json and sarif:
        raise typer.BadParameter("Give either --json or --sarif.")
    if sarif and (files := [str(path) for path in paths if str(path).endswith(".sarif")]):
        raise typer.BadParameter(f"--sarif takes no file: it prints. Write `--sarif > {files[0]}`.")


def _checkpoints(paths: Paths, *, are_turned: bool) -> list[CheckpointFound]:
    """Return the checkpoints with who reads them, which the migrated run has saved, and what heads say."""
    from fsdp_migrate.source.checkpoint_outlooks import with_outlooks
    from fsdp_migrate.source.checkpoint_readers import with_readers
    from fsdp_migrate.source.checkpoint_runs import saved_since
    from fsdp_migrate.source.surroundings import find_checkpoints, turned_at

    found = with_readers(find_checkpoints(paths), paths)
    if found and are_turned:
        found = saved_since(found, turned_at(paths, found))
    return with_outlooks(found)
