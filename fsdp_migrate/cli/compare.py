"""The command ``compare``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fsdp_migrate.cli.command_help import flag, option
from fsdp_migrate.cli.document import write_document
from fsdp_migrate.cli.options import All, Json


if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_NAMED = 4
_OVERWRITES = (
    "The command has no `OUT`, so the script saves where it always saves, and may overwrite what is there: "
    "{}. Write `OUT` where the script is given the folder or file for what it saves, such as `--out OUT`: "
    "each run gets a new one. If it saves nothing, or may overwrite these, add `--in-place` before `--`."
)


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
    in_place: Annotated[
        bool,
        flag(
            "--in-place",
            "Run without `OUT` although there are checkpoints in BEFORE or AFTER: what the script saves "
            "may overwrite them.",
        ),
    ] = False,
    steps: Annotated[int, option("N", "How many steps of each model are compared.", min=1)] = 20,
    everything: All = False,
    json: Json = False,
) -> int:
    """Run a script before and after its migration, and compare what it trains, prints and saves.

    The script needs no change, and must set its seeds. Each step of its
    optimizers is compared: gradients, groups, parameters and buffers, whole
    and by their names. Where the two part, it runs again under FSDP1 with
    whole parameters, to tell which of them is off, or, where a gradient is
    near 0, with gradients rounded otherwise. Exits with 1 if anything
    differs by more than rounding makes of it. The script writes where it
    always writes, but for what `OUT` stands for: a new folder of each run.
    """
    from fsdp_migrate.cli.render.compare import show_comparison
    from fsdp_migrate.cli.render.progress import say
    from fsdp_migrate.parity.script_runs import compare_scripts

    if not in_place:
        _keep_checkpoints((before, after), command)
    report = compare_scripts(before, after, command, steps=steps, checkpoints=checkpoint, on_phase=say)
    if json:
        write_document("compare", report.as_dict())
    else:
        show_comparison(report, everything=everything)
    return 0 if report.alike else 1


def _keep_checkpoints(folders: Sequence[str], command: Sequence[str]) -> None:
    """Refuse a command that may save over checkpoints: what FSDP1 saved cannot be had again."""
    from fsdp_migrate.errors import ConfigError
    from fsdp_migrate.findings import listed
    from fsdp_migrate.parity.script_runs import OUT
    from fsdp_migrate.source.surroundings import find_checkpoints

    if any(map(OUT.search, command)):
        return
    there = [each for each in folders if Path(each).is_dir()]
    found = [each.path for each in find_checkpoints(there)]
    if found:
        raise ConfigError(_OVERWRITES.format(listed(found, _MOST_NAMED)), field="command")
