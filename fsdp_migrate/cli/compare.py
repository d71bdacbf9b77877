"""The command ``compare``."""

from __future__ import annotations

from typing import Annotated

import typer

from fsdp_migrate.cli.command_help import option
from fsdp_migrate.cli.document import write_document
from fsdp_migrate.cli.options import All, Json


def compare(
    before: Annotated[
        str,
        typer.Argument(metavar="BEFORE", help="The folder of the script under FSDP1.", show_default=False),
    ],
    after: Annotated[
        str, typer.Argument(metavar="AFTER", help="The folder of the rewritten script.", show_default=False)
    ],
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="-- COMMAND ...",
            help="What runs in both folders. `OUT` in it becomes a new folder of each run, "
            "which is compared too.",
            show_default=False,
        ),
    ],
    checkpoint: Annotated[
        tuple[str, str] | None,
        option(
            "OLD NEW",
            "Go on from checkpoints: `CKPT` in COMMAND becomes OLD in BEFORE, and NEW, what it was "
            "converted to, in AFTER.",
        ),
    ] = None,
    steps: Annotated[int, option("N", "How many steps of each model are compared.", min=1)] = 20,
    everything: All = False,
    json: Json = False,
) -> int:
    """Run a script before and after its migration, and compare what it trains, prints and saves.

    The script needs no change, and must set its seeds. Each step of its
    optimizers is compared: gradients, groups, parameters and buffers, whole
    and by their names. Where the two part, it runs again under FSDP1 with
    whole parameters, to tell which of them is off. Exits with 1 if anything
    differs by more than rounding.
    """
    from fsdp_migrate.cli.render.compare import show_comparison
    from fsdp_migrate.cli.render.progress import say
    from fsdp_migrate.parity.script_runs import compare_scripts

    report = compare_scripts(before, after, command, steps=steps, checkpoints=checkpoint, on_phase=say)
    if json:
        write_document("compare", report.as_dict())
    else:
        show_comparison(report, everything=everything)
    return 0 if report.alike else 1
