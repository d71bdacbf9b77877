"""The commands about Python sources: ``scan`` and ``rewrite``. Nothing here loads torch."""

from __future__ import annotations

from typing import Annotated

import typer

from fsdp_migrate.cli.document import write_document


Paths = Annotated[
    list[str],
    typer.Argument(metavar="PATH...", help="Files, folders and patterns.", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="Write one JSON document to stdout, not a report.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command()(scan)
    app.command()(rewrite)


def scan(paths: Paths, json: Json = False) -> int:
    """Find FSDP1 in Python sources and notebooks, in configs and checkpoints, and say what to do.

    Nothing is imported, run or changed. What .gitignore names is left out.
    """
    from fsdp_migrate.cli import render_sources
    from fsdp_migrate.source import scan_paths
    from fsdp_migrate.source.steps import next_steps
    from fsdp_migrate.source.surroundings import find_checkpoints, find_configs

    report = scan_paths(paths)
    configs, checkpoints = find_configs(paths), find_checkpoints(paths)
    steps = next_steps(paths, report, configs, checkpoints)
    if json:
        found = {
            "configs": [config.as_dict() for config in configs],
            "checkpoints": [checkpoint.as_dict() for checkpoint in checkpoints],
            "steps": [step.as_dict() for step in steps],
        }
        write_document("scan", {**report.as_dict(), **found})
    else:
        render_sources.show_scan(report)
        render_sources.show_surroundings(configs, checkpoints, steps)
    return 0


def rewrite(
    paths: Paths,
    check: Annotated[
        bool, typer.Option("--check", help="Only name what would change; exit with 1 if anything would.")
    ] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Show the changes. This is the default.")] = False,
    write: Annotated[bool, typer.Option("--write", help="Change the files, and keep backups.")] = False,
    json: Json = False,
) -> int:
    """Turn FSDP1 code into FSDP2 code, and set a comment above what cannot be turned with certainty.

    By default it shows the changes and writes nothing. Exits with 1 if a file
    cannot be read or written; the others are done all the same.
    """
    from fsdp_migrate.cli import render_sources
    from fsdp_migrate.source import rewrite_paths

    if check + diff + write > 1:
        msg = "--check, --diff and --write exclude each other."
        raise typer.BadParameter(msg)
    report = rewrite_paths(paths, write=write)
    if json:
        write_document("rewrite", report.as_dict())
    else:
        render_sources.show_rewriting(report, diff=not check and not write)
    return 1 if report.problems or (check and report.changed) else 0
