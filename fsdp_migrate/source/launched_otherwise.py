"""Scripts that a project's own commands start without FSDP, where those that ask for it start others."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source.asked_around import ASKS_HF, COMMENT, asks, settings_around
from fsdp_migrate.source.files import is_shell
from fsdp_migrate.source.launchers import commands_of


if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from pathlib import Path


_SCRIPT: Final = re.compile(r"(?<![\w/.-])(?P<path>[\w./-]+\.py)\b")
# What may ask for FSDP itself: Accelerate's config, variables with arguments, a config of the arguments.
_OPEN: Final = re.compile(
    r"\baccelerate\b|(?<!\S)['\"]?[$@`]|(?:\s|--\w*conf\w*=)['\"]?[\w./-]+\.(?:json|toml|ya?ml)\b|\beval\b"
)
_PAGES: Final = frozenset({".md", ".rst"})
_MOST_ABOVE: Final = 3


def launched_otherwise(
    files: Collection[Path], texts: Mapping[Path, str], around: Iterable[str | os.PathLike[str]]
) -> set[Path]:
    """Return the files that only commands without FSDP start, in a project that other commands ask for it.

    Where a config or the environment asks for it, or a command may do so by a variable, there are none.

    Example:
        >>> launched_otherwise([], {}, [])
        set()
    """
    plain: set[Path] = set()
    others: set[Path] = set()
    named: Counter[str] = Counter()
    every = [(path, COMMENT.sub("", text)) for path, text in settings_around(around)]
    for path, text in every:
        commands = [each for _, each in commands_of(text)] if is_shell(path) or path.suffix in _PAGES else []
        if asks(text, ASKS_HF) and not any(asks(each, ASKS_HF) for each in commands):
            return set()
        for each in commands:
            starts = list(_started(path, each))
            if asks(each, ASKS_HF) and not starts:
                return set()
            is_plain = not asks(each, ASKS_HF) and _OPEN.search(each) is None
            (plain if is_plain else others).update(starts)
            named.update(start.name for start in starts)
    found = {path for path in files if path.resolve() in plain - others}
    return {
        path
        for path in found
        if named[path.name] == sum(_count(path.name, text) for _, text in every)
        and not any(_names(path, text) for other, text in texts.items() if other != path)
    }


def _started(place: Path, command: str) -> Iterator[Path]:
    """Yield the script of a command: the first file of Python's that is there."""
    folders = [place.parent, *place.absolute().parents[1:_MOST_ABOVE]]
    for each in _SCRIPT.finditer(command):
        for folder in folders:
            if (folder / each["path"]).is_file():
                yield (folder / each["path"]).resolve()
                return


def _count(name: str, text: str) -> int:
    return len(re.findall(rf"(?<![\w-]){re.escape(name)}\b", text)) if name in text else 0


def _names(path: Path, text: str) -> bool:
    """Tell whether another source imports a file, or has its name in a text."""
    stem = re.escape(path.stem)
    return path.stem in text and (
        path.name in text
        or re.search(rf"^[ \t]*(?:from|import)\b[^\n(]*(?:\([^)]*)?\b{stem}\b", text, re.MULTILINE)
        is not None
        or re.search(rf"\b(?:__import__|\w+_module)\([^)\n]*\b{stem}['\"]|['\"]-m\b[^\n]*\b{stem}\b", text)
        is not None
    )
