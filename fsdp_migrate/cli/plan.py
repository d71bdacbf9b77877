"""The command ``plan``."""

from __future__ import annotations

from typing import Annotated

import typer

from fsdp_migrate.cli.command_help import words_of
from fsdp_migrate.cli.document import write_document
from fsdp_migrate.cli.options import All, Config, Html, Json, Markdown, Strict, Tied


def plan(
    model: Annotated[
        str,
        typer.Option(metavar="PKG.MOD:FACTORY", help="What makes the model. It is run.", show_default=False),
    ],
    world_size: Annotated[
        int, typer.Option(min=1, metavar="N", help="The number of ranks.", show_default=False)
    ],
    config: Config = None,
    devices_per_node: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="The ranks of a node, for HYBRID_SHARD.")
    ] = None,
    tied: Annotated[
        Tied,
        typer.Option(metavar="WHO", help=f"Who owns a parameter that units would share: {words_of(Tied)}."),
    ] = Tied.parent,
    strict: Strict = False,
    everything: All = False,
    html: Html = None,
    markdown: Markdown = None,
    json: Json = False,
) -> int:
    """Show what prepare_fully_shard would do to a model, without a GPU or a process group.

    The model is built on the meta device, so that its size does not matter.
    """
    from fsdp_migrate.cli.pages.output import wanted_pages
    from fsdp_migrate.cli.pages.plan import plan_report
    from fsdp_migrate.cli.render.plan import show_shard_plan
    from fsdp_migrate.config import FSDP1Config
    from fsdp_migrate.config_files import read_config_file
    from fsdp_migrate.factories import build_model
    from fsdp_migrate.findings import raise_on_findings
    from fsdp_migrate.sharding.plan import plan_fully_shard

    pages = wanted_pages(html, markdown)
    arguments = FSDP1Config() if config is None else read_config_file(config)
    shard_plan = plan_fully_shard(
        build_model(model),
        arguments,
        world_size=world_size,
        devices_per_node=devices_per_node,
        tied=tied.value,
    )
    if json:
        write_document("plan", shard_plan.as_dict())
    else:
        show_shard_plan(shard_plan, everything=everything)
    given = None if config is None else str(config)
    pages.write(lambda: plan_report(shard_plan, model=model, config=given), aside=json)
    raise_on_findings(shard_plan.findings, strict=strict)
    return 0
