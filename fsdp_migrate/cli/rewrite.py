"""The command ``rewrite``. Nothing here loads torch."""

from __future__ import annotations

from typing import Annotated

import typer

from fsdp_migrate.cli.command_help import WRITING, flag
from fsdp_migrate.cli.document import write_document
from fsdp_migrate.cli.options import (
    Json,
    Paths,
)


def rewrite(
    paths: Paths,
    check: Annotated[
        bool, flag("--check", "Only name what would change; exit with 1 if anything would.", WRITING)
    ] = False,
    diff: Annotated[bool, flag("--diff", "Show the changes. This is the default.", WRITING)] = False,
    write: Annotated[bool, flag("--write", "Change the files, and keep backups.", WRITING)] = False,
    json: Json = False,
) -> int:
    """Rewrite FSDP1 code as FSDP2 code, and put a comment above what is not certain.

    By default it shows the changes and writes nothing. Exits with 1 if a file
    cannot be read or written; the others are still done.
    """
    from fsdp_migrate.cli.render.sources import show_rewriting
    from fsdp_migrate.source import rewrite_paths
    from fsdp_migrate.source.pins import without_ours
    from fsdp_migrate.source.surroundings import look_for_comments, said_of_settings

    if check + diff + write > 1:
        msg = "--check, --diff and --write exclude each other."
        raise typer.BadParameter(msg)
    report = rewrite_paths(paths, write=write)
    sharding = [each.path for each in report.changed if "prepare_fully_shard(" in each.after]
    settings = said_of_settings(paths, is_changed=bool(report.changed), sharding=sharding)
    if json:
        write_document("rewrite", {**report.as_dict(), "settings": settings})
    else:
        lacking = without_ours(paths) if report.imports_ours else None
        is_checked = report.looks_for_comments or look_for_comments(paths)
        show_rewriting(report, lacking, settings, is_checked=is_checked, diff=not check and not write)
    return 1 if report.problems or (check and report.changed) else 0
