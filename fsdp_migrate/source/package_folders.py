"""The folders that a project's packaging gives its packages, where they are called otherwise than these."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


_FILES: Final = ("pyproject.toml", "setup.cfg", "setup.py")
_TABLES: Final = (
    re.compile(r"\bpackage[-_]dir\s*=\s*\{([^}]*)\}"),
    re.compile(r"^\[tool\.setuptools\.package-dir\][ \t]*\n((?:[^\[\n]*\n?)+)", re.MULTILINE),
    re.compile(r"^package_dir[ \t]*=[ \t]*\n((?:[ \t]+\S.*\n?)+)", re.MULTILINE),
)
_PAIR: Final = re.compile(r"[\"']?\b([A-Za-z_][\w.]*)[\"']?\s*[=:]\s*[\"']?([\w./-]+)")
_ABOVE: Final = 5
_MAX_BYTES: Final = 1_000_000


def package_folders(paths: Iterable[Path]) -> dict[tuple[str, ...], Path]:
    """Return the folders of packages by their names, as ``package-dir`` around some files says.

    Nothing is written. What cannot be read says nothing, and neither does one that gives every package the
    same folder (``"" = "src"``): their own names are those of folders there.

    Example:
        >>> package_folders([Path("fsdp_migrate/source/files.py")])[("fsdp_migrate", "adapters")].name
        'adapters'
    """
    above = list(map(str, {path.absolute().parent for path in paths}))
    if not above:
        return {}
    root = Path(os.path.commonpath(above))
    folders = [root, *root.parents][:_ABOVE]
    pairs = (each for folder in folders for name in _FILES for each in _said(folder / name))
    return {tuple(name.split(".")): folder for name, folder in pairs}


def _said(file: Path) -> Iterator[tuple[str, Path]]:
    text = ""
    with suppress(OSError):
        text = file.read_text(errors="replace") if file.stat().st_size <= _MAX_BYTES else ""
    for table in _TABLES:
        for found in table.findall(text):
            yield from ((name, Path(os.path.normpath(file.parent / to))) for name, to in _PAIR.findall(found))
