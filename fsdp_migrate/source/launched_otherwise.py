"""Scripts that a project's own commands start without FSDP, where those that ask for it start others."""

from __future__ import annotations

import ast
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from fsdp_migrate.newer_syntax import parse_any
from fsdp_migrate.source.asked_around import ASKS_HF, COMMENT, asks, settings_around
from fsdp_migrate.source.files import is_shell
from fsdp_migrate.source.launchers import commands_of
from fsdp_migrate.source.plain_commands import asks_nothing, configs_of
from fsdp_migrate.source.shown_commands import (
    PAGES,
    SCRIPT,
    Scripts,
    folders_of,
    numbered_commands,
    script_of,
)


if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from pathlib import Path


_ACCELERATES: Final = re.compile(r"^[\s{]*['\"]?distributed_type['\"]?\s*:\s*['\"]?FSDP\b", re.MULTILINE)
_PYTHON: Final = re.compile(r"(?:[A-Z_]\w*=\S+[ ]+)*python[\d.]*[ ]+(?!-m[ ]+(?:accelerate|torch)\b)")
_DOCSTRING: Final = re.compile(r"(?:\s|#[^\n]*\n)*[rRuU]?(\"\"\"|''')(?P<said>.*?)\1", re.DOTALL)
# What starts several processes, in a command or in a source.
_LAUNCHES: Final = re.compile(
    r"\b(?:accelerate(?:[ ]+|\.commands\.|['\"], *['\"])launch|mp\.spawn|multiprocessing\.spawn"
    r"|notebook_launcher|torchrun|torch\.distributed\.(?:launch|run))\b"
)


@dataclass(eq=False)
class Starts:
    """The scripts that a project's commands start: with FSDP, or a way that may ask for it, and without.

    ``is_unclear``: something asks for FSDP, and which script it is for is not seen.
    ``by_arguments``: a script's own arguments may ask for it. ``hides_scripts``: a command starts several
    processes of a script that is not seen.
    """

    plain: set[Path] = field(default_factory=set)
    others: set[Path] = field(default_factory=set)
    texts: list[str] = field(default_factory=list)
    is_unclear: bool = False
    by_arguments: bool = True
    hides_scripts: bool = False
    scripts: Scripts = field(default_factory=lambda: Scripts([]), repr=False)
    _named: Counter[str] = field(default_factory=Counter, repr=False)
    _asking: set[Path] = field(default_factory=set, repr=False)
    """Accelerate's own configs, whose scripts are those of the commands that name them."""
    _told: set[Path] = field(default_factory=set, repr=False)
    """The configs that commands name whose scripts are seen."""

    @classmethod
    def read(cls, around: Iterable[str | os.PathLike[str]], *, by_arguments: bool = True) -> Starts:
        """Read the configs, scripts and pages of a project."""
        every = list(around)
        found = cls(by_arguments=by_arguments, scripts=Scripts(every))
        for path, text in settings_around(every):
            found.note(path, COMMENT.sub("", text))
        found.is_unclear = found.is_unclear or bool(found._asking - found._told)
        return found

    def note(self, path: Path, text: str) -> None:
        """Note what a script or a page starts, or that a config asks for FSDP."""
        commands = [each for _, each in commands_of(text)] if is_shell(path) or path.suffix in PAGES else []
        self.texts.append(text)
        is_commands = any(asks(each, ASKS_HF) for each in commands)
        if asks(text, ASKS_HF) and not is_commands:
            rest = _ACCELERATES.sub("", text)
            is_config = not commands and rest != text and not asks(rest, ASKS_HF)
            self._asking |= {path.resolve()} if is_config else set()
            self.is_unclear = self.is_unclear or not is_config
        for each in commands:
            starts, is_one = list(_started(path, each, self.scripts)), asks(each, ASKS_HF)
            self.is_unclear = self.is_unclear or (is_one and not starts)
            self.hides_scripts = self.hides_scripts or (not starts and _LAUNCHES.search(each) is not None)
            self._told.update(config.resolve() for config in configs_of(path, each) if starts)
            is_plain = not is_one and asks_nothing(path, each, by_arguments=self.by_arguments)
            (self.plain if is_plain else self.others).update(starts)
            self._named.update(start.name for start in starts)

    def are_all_of(self, path: Path) -> bool:
        """Tell whether each place that names a script is a command that starts it."""
        return self._named[path.name] == sum(_count(path.name, text) for text in self.texts)

    def name(self, path: Path) -> bool:
        """Tell whether a command starts a script, or anything else here names it."""
        return path.resolve() in self.plain | self.others or any(
            _count(path.name, text) for text in self.texts
        )


def launched_otherwise(
    files: Collection[Path], texts: Mapping[Path, str], around: Iterable[str | os.PathLike[str]]
) -> set[Path]:
    """Return the files that only commands without FSDP start, in a project that other commands ask for it.

    Where the environment asks for it, or a config that no command names, or a command may do so by a
    variable, there are none.

    Example:
        >>> launched_otherwise([], {}, [])
        set()
    """
    starts = Starts.read(around) if files else None
    if starts is None:
        return set()
    known = set() if starts.is_unclear else starts.plain - starts.others
    found = {path for path in files if path.resolve() in known and starts.are_all_of(path)}
    found |= {path for path in files if _says_so_itself(path, texts.get(path, ""), starts)}
    return {
        path
        for path in found
        if not any(
            _imports(path, text) or is_named(path, text) for other, text in texts.items() if other != path
        )
    }


def _says_so_itself(path: Path, text: str, starts: Starts) -> bool:
    """Tell whether a script's own docstring starts it by ``python`` alone, and no command in another way.

    So it is one process, in which no framework shards. A launch of a script that a variable names may be its.
    """
    begins = _DOCSTRING.match(text)
    if (
        begins is None
        or "python" not in begins["said"]
        or starts.hides_scripts
        or path.resolve() in starts.others
        or _LAUNCHES.search(text)
    ):
        return False
    try:
        said = ast.get_docstring(parse_any(text), clean=False) or ""
    except (SyntaxError, ValueError, RecursionError):
        return False
    shown = [each for _, each in numbered_commands(path, said, starts.scripts)]
    return bool(shown) and all(
        _PYTHON.match(each) is not None and path.resolve() in _started(path, each, starts.scripts)
        for each in shown
    )


def _started(place: Path, command: str, scripts: Scripts) -> Iterator[Path]:
    """Yield the script of a command, not of a variable: the first file of Python's that is there."""
    for each in SCRIPT.finditer(command):
        if command[: each.start()].endswith(("=", "='", '="')):
            return
        name = script_of(each)
        found = [folder / name for folder in folders_of(place) if (folder / name).is_file()]
        below = [] if found else scripts.below(place.parent, name)
        # As after a `cd`; of several it is not known which one is meant.
        found += below if len(below) == 1 else []
        if found:
            yield found[0].resolve()
            return


def _count(name: str, text: str) -> int:
    return len(re.findall(rf"(?<![\w-]){re.escape(name)}\b", text)) if name in text else 0


def is_named(path: Path, text: str) -> bool:
    """Tell whether another source has the name of a file in a text, by which it may run it.

    Example:
        >>> from pathlib import Path
        >>> train = Path("train.py")
        >>> is_named(train, "run(['python', 'train.py'])"), is_named(train, "import train")
        (True, False)
    """
    stem = re.escape(path.stem)
    return path.stem in text and (
        path.name in text
        or re.search(rf"\b(?:__import__|\w+_module)\([^)\n]*\b{stem}['\"]|['\"]-m\b[^\n]*\b{stem}\b", text)
        is not None
    )


def _imports(path: Path, text: str) -> bool:
    """Tell whether another source imports a file."""
    pattern = rf"^[ \t]*(?:from|import)\b[^\n(]*(?:\([^)]*)?\b{re.escape(path.stem)}\b"
    return path.stem in text and re.search(pattern, text, re.MULTILINE) is not None
