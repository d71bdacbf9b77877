"""The command ``demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fsdp_migrate.cli.document import write_document
from fsdp_migrate.cli.options import Html, Json, Markdown


def demo(
    folder: Annotated[
        Path | None,
        typer.Option("--dir", metavar="DIR", help="Keep the checkpoints in this new or empty folder."),
    ] = None,
    world_size: Annotated[int, typer.Option(min=1, metavar="N", help="How many processes to start.")] = 2,
    steps: Annotated[int, typer.Option(min=2, metavar="N", help="How many steps to train.")] = 10,
    html: Html = None,
    markdown: Markdown = None,
    json: Json = False,
) -> int:
    """Watch a real FSDP1 run stop, its checkpoint convert, and the run go on under FSDP2.

    Needs no GPU. Exits with 1 if a bit of the losses, the parameters or the optimizer state differs.
    """
    from fsdp_migrate.cli.pages.demo import demo_report
    from fsdp_migrate.cli.pages.output import wanted_pages
    from fsdp_migrate.cli.render.demo import show_demo
    from fsdp_migrate.cli.render.progress import say
    from fsdp_migrate.demo import run_demo

    pages = wanted_pages(html, markdown)
    report = run_demo(folder, world_size=world_size, num_steps=steps, on_phase=say)
    if json:
        write_document("demo", report.as_dict())
    else:
        show_demo(report)
    pages.write(lambda: demo_report(report), aside=json)
    return 0 if report.identical else 1
