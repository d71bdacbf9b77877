"""The command ``config``: from options to :mod:`fsdp_migrate.config_files` to what people see."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fsdp_migrate.cli.command_help import SOURCE, WRITING, flag, option, words_of
from fsdp_migrate.cli.document import write_document
from fsdp_migrate.cli.options import All, Json, Overwrite, Strict


if TYPE_CHECKING:
    from fsdp_migrate.config_files import ConfigConversion


class Framework(str, Enum):
    """Whose config it is."""

    auto = "auto"
    accelerate = "accelerate"
    axolotl = "axolotl"
    composer = "composer"
    hf = "hf"
    lightning = "lightning"
    torch = "torch"


class Outcome(str, Enum):
    """What to make of a config."""

    same = "same"
    torch = "torch"


File = Annotated[
    Path | None,
    typer.Argument(metavar="FILE", help="YAML, JSON, a shell script or a notebook.", show_default=False),
]
CommandText = Annotated[
    str | None, option("TEXT", "A shell command with FSDP flags, in place of FILE.", SOURCE)
]
OutputFile = Annotated[
    Path | None, option("OUT", "Write the outcome to this file.", WRITING, names="--output -o")
]
Write = Annotated[bool, flag("--write -w", "Replace FILE, and keep a backup beside it.", WRITING)]
Check = Annotated[bool, flag("--check", "Write nothing; exit with 1 if FILE would change.", WRITING)]
FromFramework = Annotated[
    Framework,
    option("FRAMEWORK", f"The framework of the config: {words_of(Framework)}.", SOURCE, names="--from"),
]
ToWhat = Annotated[
    Outcome,
    option("WHAT", "`same`: the same framework's FSDP2. `torch`: a call in plain torch, on stdout.", WRITING),
]
Key = Annotated[str | None, option("PATH", "The mapping to convert, such as `trainer.fsdp`.", SOURCE)]
RankNumber = Annotated[int | None, option("N", "The number of ranks.", SOURCE, min=1)]
NodeNumber = Annotated[int | None, option("N", "The number of nodes.", SOURCE, min=1)]


def config(
    file: File = None,
    command: CommandText = None,
    output: OutputFile = None,
    write: Write = False,
    check: Check = False,
    framework: FromFramework = Framework.auto,
    to: ToWhat = Outcome.same,
    key: Key = None,
    world_size: RankNumber = None,
    nodes: NodeNumber = None,
    overwrite: Overwrite = False,
    strict: Strict = False,
    everything: All = False,
    json: Json = False,
) -> int:
    """Convert the FSDP1 settings in a config file, or in a shell script's launch lines, to FSDP2.

    Shows the change as a diff, and writes nothing unless told where to.
    Comments, order and everything else in the file stay as they are.
    """
    from fsdp_migrate.config_files import config_as_torch, convert_command_line, convert_config_file

    _refuse_contradictions(output=output, write=write, check=check)
    if (file is None) == (command is None):
        raise typer.BadParameter("Give either FILE or --command TEXT.")
    if command is not None:
        if output is not None or write:
            raise typer.BadParameter("A command is written to stdout: --output and --write are for FILE.")
        report = convert_command_line(command, strict=strict, world_size=world_size, nodes=nodes)
        return _show(report, check=check, everything=everything, json=json)
    assert file is not None
    if to is Outcome.torch:
        return _show_code(file, config_as_torch(file, framework=framework.value, key=key), json=json)
    report = convert_config_file(
        file,
        output,
        in_place=write,
        overwrite=overwrite,
        strict=strict,
        framework=framework.value,
        key=key,
        world_size=world_size,
        nodes=nodes,
    )
    return _show(report, check=check, everything=everything, json=json)


def _show_code(file: Path, code: str, *, json: bool) -> int:
    if json:
        write_document("config", {"path": str(file), "code": code})
    else:
        sys.stdout.write(code)
    return 0


def _show(report: ConfigConversion, *, check: bool, everything: bool, json: bool) -> int:
    """Show what became of a config; return the exit code."""
    if json:
        write_document("config", report.as_dict())
    else:
        from fsdp_migrate.cli.render.config import show_config

        if report.is_command and not check:
            sys.stdout.write(f"{report.conversion.text}\n")
        elif report.output is None and not check:
            sys.stdout.write(report.diff())
        sys.stdout.flush()
        show_config(report, check=check, everything=everything)
    return 1 if check and report.is_changed else 0


def _refuse_contradictions(*, output: Path | None, write: bool, check: bool) -> None:
    given = [
        name for name, is_given in (("--output", output), ("--write", write), ("--check", check)) if is_given
    ]
    if len(given) > 1:
        raise typer.BadParameter(f"{' and '.join(given)} exclude each other.")
