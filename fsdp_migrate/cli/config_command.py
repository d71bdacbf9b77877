"""The command ``config``: from options to :mod:`fsdp_migrate.config_files` to what people see."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path  # noqa: TC003 - typer reads annotations when the program runs
from typing import TYPE_CHECKING, Annotated

import typer

from fsdp_migrate.cli.document import write_document


if TYPE_CHECKING:
    from fsdp_migrate.config_files import ConfigConversion


class Stack(str, Enum):
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


def config(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="YAML or JSON.", show_default=False)
    ] = None,
    command: Annotated[
        str | None, typer.Option(metavar="TEXT", help="A shell command with FSDP flags, in place of FILE.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="OUT", help="Write the outcome to this file.")
    ] = None,
    write: Annotated[
        bool, typer.Option("--write", "-w", help="Replace FILE, and keep a backup beside it.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit with 1 if FILE would change.")
    ] = False,
    stack: Annotated[Stack, typer.Option("--from", help="Whose config it is.")] = Stack.auto,
    to: Annotated[
        Outcome, typer.Option(help="`torch`: a call in plain torch instead, on stdout.")
    ] = Outcome.same,
    key: Annotated[
        str | None, typer.Option(metavar="PATH", help="The mapping to convert: `trainer.fsdp`.")
    ] = None,
    world_size: Annotated[int | None, typer.Option(min=1, metavar="N", help="The number of ranks.")] = None,
    nodes: Annotated[int | None, typer.Option(min=1, metavar="N", help="The number of nodes.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT if it exists.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 3 if anything would change.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Write one JSON document to stdout, not a report.")
    ] = False,
) -> int:
    """Turn the FSDP1 settings in a config file into FSDP2's.

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
        return _show(report, check=check, json=json)
    assert file is not None
    if to is Outcome.torch:
        return _show_code(file, config_as_torch(file, stack=stack.value, key=key), json=json)
    report = convert_config_file(
        file,
        output,
        in_place=write,
        overwrite=overwrite,
        strict=strict,
        stack=stack.value,
        key=key,
        world_size=world_size,
        nodes=nodes,
    )
    return _show(report, check=check, json=json)


def _show_code(file: Path, code: str, *, json: bool) -> int:
    if json:
        write_document("config", {"path": str(file), "code": code})
    else:
        sys.stdout.write(code)
    return 0


def _show(report: ConfigConversion, *, check: bool, json: bool) -> int:
    """Show what became of a config; return the exit code."""
    if json:
        write_document("config", report.as_dict())
    else:
        from fsdp_migrate.cli import render_config

        if report.is_command and not check:
            sys.stdout.write(f"{report.conversion.text}\n")
        elif report.output is None and not check:
            sys.stdout.write(report.diff())
        render_config.show_config(report, check=check)
    return 1 if check and report.is_changed else 0


def _refuse_contradictions(*, output: Path | None, write: bool, check: bool) -> None:
    given = [
        name for name, is_given in (("--output", output), ("--write", write), ("--check", check)) if is_given
    ]
    if len(given) > 1:
        raise typer.BadParameter(f"{' and '.join(given)} exclude each other.")
