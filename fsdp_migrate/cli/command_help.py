"""What ``--help`` shows: usage, options in groups, an example. It reads the same with every version of typer.

Every option that takes a value has a ``metavar``, so that nothing is asked of typer's own types.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup

from fsdp_migrate.cli.render.paragraphs import screen_width, set_definitions, set_lines


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


ARGUMENTS, OPTIONS = "Arguments", "Options"
SOURCE = "About the source"
RESULT = "What the result is"
TARGET = "For one target"
WRITING = "How it is written"
TRAINED = "What is trained on"
MEMORY = "Forecast of memory"
REPORT = "What is reported"
COMPLETION = "Completion in the shell"
_JOINED = "\u00a0"
# In this order; what has no group stands between.
_FIRST = (ARGUMENTS, OPTIONS)
_LAST = (REPORT, COMPLETION)


def words_of(choices: type[Enum]) -> str:
    """Return the words that an option takes, for its help.

    Example:
        >>> words_of(Enum("Tied", {"parent": "parent", "group": "group"}))
        'parent or group'
    """
    *others, last = [str(choice.value) for choice in choices]
    return f"{', '.join(others)} or {last}"


def flag(names: str, says: str, panel: str | None = None, **others: Any) -> Any:
    """Describe an option that is given or not."""
    return typer.Option(*names.split(), help=says, rich_help_panel=panel, **others)


def option(metavar: str, says: str, panel: str | None = None, *, names: str = "", **others: Any) -> Any:
    """Describe an option that takes a value; without ``names`` it has the parameter's own."""
    return typer.Option(*names.split(), metavar=metavar, help=says, rich_help_panel=panel, **others)


class Command(TyperCommand):
    """A command whose help is set here."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return what follows the name of the command in its usage."""
        return _usage(self, ctx)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help."""
        formatter.write("\n".join(_command_help(self, ctx)) + "\n")


class Group(TyperGroup):
    """The command itself, with what it can do."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take the words of the command line; where there are none, show the help."""
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help())
            raise typer.Exit(2)
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return what follows the name of the program in its usage."""
        return [*_usage(self, ctx), "COMMAND ..."]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help."""
        commands = [self.get_command(ctx, name) for name in self.commands]
        groups: dict[str, list[tuple[str, str]]] = {}
        for command in commands:
            if command is not None:
                name = getattr(command, "rich_help_panel", None) or "Commands"
                about = str(command.help or "").partition("\n\n")[0]
                groups.setdefault(str(name), []).append((str(command.name), " ".join(about.split())))
        formatter.write("\n".join(_command_help(self, ctx, groups)) + "\n")


def _usage(command: Any, ctx: Any) -> list[str]:
    arguments = [p for p in command.get_params(ctx) if p.param_type_name == "argument" and not p.hidden]
    return ["[OPTIONS]", *(_argument(each) for each in arguments)]


def _argument(parameter: Any) -> str:
    name = str(parameter.metavar)
    return name if parameter.required else f"[{name}]"


def _command_help(
    command: Any, ctx: Any, groups: dict[str, list[tuple[str, str]]] | None = None
) -> Iterator[str]:
    width = screen_width()
    yield from set_lines(
        f"{ctx.command_path} {' '.join(command.collect_usage_pieces(ctx))}",
        width=width,
        first="Usage: ",
        indent=" " * 7,
    )
    for paragraph in str(command.help or "").split("\n\n"):
        yield ""
        yield from set_lines(" ".join(paragraph.split()), width=width)
    for title, rows in {**(groups or {}), **_options(command, ctx)}.items():
        yield ""
        yield f"{title}:"
        yield from (line.replace(_JOINED, " ") for line in set_definitions(rows, width=width))
    if command.epilog:
        yield ""
        yield "Example:" if "\n" not in command.epilog.strip() else "Examples:"
        yield from (f"  {line.strip()}" for line in command.epilog.strip().splitlines())


def _options(command: Any, ctx: Any) -> dict[str, list[tuple[str, str]]]:
    """Return the rows of each group of arguments and options."""
    found: dict[str, list[tuple[str, str]]] = {}
    for parameter in command.get_params(ctx):
        if getattr(parameter, "hidden", False):
            continue
        if parameter.param_type_name == "argument":
            row = (str(parameter.metavar), _meaning(parameter))
            found.setdefault(ARGUMENTS, []).append(row)
            continue
        name = getattr(parameter, "rich_help_panel", None) or _group_of(parameter)
        found.setdefault(name, []).append((_names(parameter), _meaning(parameter)))
    middle = [name for name in found if name not in (*_FIRST, *_LAST)]
    return {name: found[name] for name in (*_FIRST, *middle, *_LAST) if name in found}


def _group_of(parameter: Any) -> str:
    """Return the group of what typer itself adds."""
    if parameter.name in {"install_completion", "show_completion"}:
        return COMPLETION
    return REPORT if "--help" in parameter.opts else OPTIONS


def _names(parameter: Any) -> str:
    names = ", ".join(sorted(parameter.opts, key=len))
    if getattr(parameter, "is_flag", False) or parameter.metavar is None:
        return names
    return f"{names} {parameter.metavar}"


def _meaning(parameter: Any) -> str:
    notes: Iterable[str] = ("required",) if parameter.required else _default(parameter.default)
    shown = "".join(f" [{note}]" for note in notes)
    return f"{parameter.help or ''}{shown}".strip()


def _default(value: object) -> Iterator[str]:
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, (str, int)) and not isinstance(value, bool):
        yield f"default:{_JOINED}{value}"
