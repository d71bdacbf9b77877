"""The command ``demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fsdp_migrate.cli.command_help import option
from fsdp_migrate.cli.document import write_document
from fsdp_migrate.cli.options import Html, Json, Markdown


def demo(
    folder: Annotated[
        Path | None, option("DIR", "Keep the checkpoints in this new or empty folder.", names="--dir")
    ] = None,
    world_size: Annotated[int, option("N", "How many processes to start.", min=1)] = 2,
    steps: Annotated[int, option("N", "How many steps to train.", min=2)] = 10,
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
