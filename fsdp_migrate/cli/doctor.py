"""The command ``doctor``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fsdp_migrate.cli.command_help import REPORT, flag, option
from fsdp_migrate.cli.document import write_document
from fsdp_migrate.cli.options import MODEL_HELP, Html, Json, Markdown


def doctor(
    paths: Annotated[
        list[str] | None, typer.Argument(metavar="PATH...", help="Files, folders and patterns.")
    ] = None,
    model: Annotated[str | None, option("PKG.MOD:FACTORY", MODEL_HELP)] = None,
    config: Annotated[Path | None, option("FILE", "YAML or JSON with FSDP1's settings.")] = None,
    checkpoint: Annotated[str | None, option("CKPT", "A checkpoint.")] = None,
    world_size: Annotated[
        int | None, option("N", "The number of ranks, with --model; that of the config, or 8.", min=1)
    ] = None,
    strict: Annotated[bool, flag("--strict", "Exit with 3 if a known fault is there.", REPORT)] = False,
    html: Html = None,
    markdown: Markdown = None,
    json: Json = False,
) -> int:
    """Say which known faults of torch and the frameworks hit you, and what to do.

    Looks at the versions here, and at whatever it is given. docs/known-issues.md
    lists all faults that it knows.
    """
    from fsdp_migrate.cli.pages.doctor import doctor_report
    from fsdp_migrate.cli.pages.output import wanted_pages
    from fsdp_migrate.cli.render.doctor import show_diagnosis
    from fsdp_migrate.doctor import examine, look

    pages = wanted_pages(html, markdown)
    sight = look(model=model, config=config, checkpoint=checkpoint, paths=paths or (), world_size=world_size)
    diagnosis = examine(sight)
    if json:
        write_document("doctor", diagnosis.as_dict())
    else:
        show_diagnosis(diagnosis)
    given = {
        "paths": " ".join(paths or ()),
        "model": model,
        "config": None if config is None else str(config),
        "checkpoint": checkpoint,
    }
    pages.write(lambda: doctor_report(diagnosis, given), aside=json)
    return 3 if strict and diagnosis.symptoms else 0
