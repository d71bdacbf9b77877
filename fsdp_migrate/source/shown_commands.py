"""What a page of documentation shows of how a project's own scripts are started: commands, and configs."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source.files import NEVER
from fsdp_migrate.source.tracked import is_environment


if TYPE_CHECKING:
    from collections.abc import Collection, Iterator


_COMMAND: Final = re.compile(
    r"^[\s$>`]*(?:[A-Z_]\w*=\S+[ ]+)*(?:\w+[ ]+run[ ]+|srun[ ]+)?"
    r"(?:accelerate[ ]+launch|composer|fabric[ ]+run|lightning[ ]+run|python[\d.]*|torchrun)\b.*$"
)
SCRIPT: Final = re.compile(r"(?<![\w/.-])(?:\./)?(?P<path>[\w./-]+\.py)\b|[ ]-m[ ]+(?P<module>[\w.]+)")
"""A script that a command names, or a module."""
_FENCED: Final = re.compile(r"^[ \t]*```[ \t]*ya?ml[ \t]*\n(?P<text>.*?)^[ \t]*```", re.MULTILINE | re.DOTALL)
_FENCE: Final = re.compile(r"^[ \t>]*(?:```|~~~)")
_SET_AS_CODE: Final = re.compile(r"^(?:[ ]{2}|\t|[$>]|`[^`]*`\s*$)")
_ENTERS: Final = re.compile(r"(?:^[\s$>`]*|(?:&&|;)[ ]*)cd[ ]+['\"]?(?P<folder>[\w./-]+)")
_MOST_ABOVE: Final = 3
_GOES_ON: Final = re.compile(r"[ \t]*\\[ \t]*\n[ \t]*")
_BREAK: Final = "\x1a"
"""In the place of a line's end in a command that goes on."""
PAGES: Final = frozenset({".md", ".rst"})
"""What pages end in."""
_OF_THE_PAST: Final = re.compile(r"(?i)^(?:change|history|news|release)")


def is_page(path: Path) -> bool:
    """Tell whether a file is a page that tells of now, and not of what was, or of others."""
    return path.suffix in PAGES and not _OF_THE_PAST.match(path.name) and path.is_file()


def numbered_commands(page: Path, text: str) -> Iterator[tuple[int, str]]:
    r"""Yield the commands of a page that start a script of its project, each with its line.

    Example:
        >>> from pathlib import Path
        >>> list(numbered_commands(Path("README.md"), "    torchrun none.py --fsdp full_shard\n"))
        []
    """
    breaks = 0
    joined = _GOES_ON.sub(f" {_BREAK}", text)
    code = dict(_code(joined))
    entered = {each["folder"] for line in code.values() for each in _ENTERS.finditer(line)}
    code = {number: line for number, line in code.items() if _COMMAND.match(line)}
    below = scripts_below(page.parent) if code else ()
    for number, line in enumerate(joined.splitlines(), 1):
        command = code.get(number, "").replace(_BREAK, "")
        if command and _starts_one_here(page, command, entered, below):
            yield number + breaks, command.strip(" \t$>`")
        breaks += line.count(_BREAK)


def shown_commands(page: Path, text: str) -> str:
    r"""Return the commands of a page that start a script of its project, and the configs for them.

    Such a script lies beside the page, above, below, or in a folder that a command of the page enters.

    What a page says in words is left out, and so is how a script of others is started.

    Example:
        >>> from pathlib import Path
        >>> shown_commands(Path("README.md"), "We use FSDP.\n\n    torchrun none.py --fsdp full_shard\n")
        ''
    """
    own = [command for _, command in numbered_commands(page, text)]
    configs = [each["text"] for each in _FENCED.finditer(text)] if own else []
    return "\n".join([*own, *configs])


def _code(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a page that are code: fenced, indented, after a prompt, or between backticks."""
    is_fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if _FENCE.match(line):
            is_fenced = not is_fenced
        elif is_fenced or _SET_AS_CODE.match(line):
            yield number, line


def scripts_below(folder: Path) -> set[str]:
    """Return the Python files in the folders below one, by their paths within it.

    Example:
        >>> scripts_below(Path("tests/source/scripts")) <= scripts_below(Path("tests/source/scripts").parent)
        True
    """
    found: set[str] = set()
    for place, folders, files in os.walk(folder):
        here = Path(place)
        folders[:] = [name for name in folders if name not in NEVER and not is_environment(here / name)]
        within = here.relative_to(folder)
        found.update((within / name).as_posix() for name in files if name.endswith(".py"))
    return found


def _starts_one_here(page: Path, command: str, entered: Collection[str], below: Collection[str]) -> bool:
    above = [page.parent, *page.absolute().parents[1:_MOST_ABOVE]]
    folders = [*above, *(folder / name for folder in above for name in entered)]
    found = SCRIPT.finditer(command)
    names = [each["path"] or f"{each['module'].replace('.', '/')}.py" for each in found]
    return any((folder / name).is_file() for name in names for folder in folders) or any(
        each.endswith(f"/{name}") for name in names for each in below
    )
