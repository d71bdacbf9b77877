"""What a page of documentation shows of how a project's own scripts are started: commands, and configs."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source.files import find_sources


if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterable, Iterator


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


def numbered_commands(page: Path, text: str, scripts: Scripts) -> Iterator[tuple[int, str]]:
    r"""Yield the commands of a page that start a script of its project, each with its line.

    Example:
        >>> text = "    torchrun none.py --fsdp full_shard\n"
        >>> list(numbered_commands(Path("README.md"), text, Scripts([])))
        []
    """
    breaks = 0
    joined = _GOES_ON.sub(f" {_BREAK}", text)
    code = dict(_code(joined))
    entered = {each["folder"] for line in code.values() for each in _ENTERS.finditer(line)}
    code = {number: line for number, line in code.items() if _COMMAND.match(line)}
    for number, line in enumerate(joined.splitlines(), 1):
        command = code.get(number, "").replace(_BREAK, "")
        if command and _starts_one_here(page, command, entered, scripts):
            yield number + breaks, command.strip(" \t$>`")
        breaks += line.count(_BREAK)


def shown_commands(page: Path, text: str, scripts: Scripts) -> str:
    r"""Return the commands of a page that start a script of its project, and the configs for them.

    Such a script lies beside the page, above, below, or in a folder that a command of the page enters.

    What a page says in words is left out, and so is how a script of others is started.

    Example:
        >>> text = "We use FSDP.\n\n    torchrun none.py --fsdp full_shard\n"
        >>> shown_commands(Path("README.md"), text, Scripts([]))
        ''
    """
    own = [command for _, command in numbered_commands(page, text, scripts)]
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


class Scripts:
    """The Python files of a project, which are looked for once, and only if a command asks for one.

    Those that ``.gitignore`` names are left out, as a folder of data is.

    Args:
        paths: The files and folders of the project.

    Example:
        >>> Scripts(["fsdp_migrate"]).below(Path("fsdp_migrate/source"), "python/absent.py")
        []
    """

    def __init__(self, paths: Iterable[str | os.PathLike[str]]) -> None:
        self._paths = list(paths)

    def below(self, folder: Path, name: str) -> list[Path]:
        """Return the scripts of a name in the folders below one, not those in itself."""
        around = folder.absolute()
        return [each for each in self._named.get(Path(name).name, ()) if _lies_below(each, around, name)]

    @functools.cached_property
    def _named(self) -> dict[str, list[Path]]:
        found: dict[str, list[Path]] = {}
        for path in find_sources(self._paths) if self._paths else ():
            found.setdefault(path.name, []).append(path.absolute())
        return found


def _lies_below(script: Path, folder: Path, name: str) -> bool:
    return folder in script.parents and script.relative_to(folder).as_posix().endswith(f"/{name}")


def folders_of(place: Path) -> list[Path]:
    """Return the folders in which a script may stand that a command of a file starts.

    Example:
        >>> folders_of(Path("/a/b/run.sh"))
        [PosixPath('/a/b'), PosixPath('/a'), PosixPath('/')]
    """
    return [place.parent, *place.absolute().parents[1:_MOST_ABOVE]]


def script_of(named: re.Match[str]) -> str:
    """Return the file that a command names, by its path or as a module."""
    return named["path"] or f"{named['module'].replace('.', '/')}.py"


def _starts_one_here(page: Path, command: str, entered: Collection[str], scripts: Scripts) -> bool:
    above = folders_of(page)
    folders = [*above, *(folder / name for folder in above for name in entered)]
    names = [script_of(each) for each in SCRIPT.finditer(command)]
    if any((folder / name).is_file() for name in names for folder in folders):
        return True
    return any(scripts.below(page.parent, name) for name in names)
