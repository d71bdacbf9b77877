"""The scripts of a project that train: what is run before and after, each for itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from fsdp_migrate.source.files import find_sources, read_source


if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping

    from fsdp_migrate.source.uses import ScanReport


_IS_RUN = re.compile(r"^if __name__ == ['\"]__main__['\"]", re.MULTILINE)
_TRAINS = re.compile(r"\.(?:backward|fit|step|train)\(")
_IMPORTS = re.compile(r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]+(.+)|import[ \t]+(.+))$", re.MULTILINE)
_NAMES_FSDP = re.compile(r"\bfsdp_migrate\b")
_TEST = re.compile(r"^test_|_test$")


def texts_of(paths: Iterable[str | os.PathLike[str]]) -> dict[Path, str]:
    """Return the sources below paths, without notebooks; one that cannot be read is empty."""
    return {path: _text(path) for path in find_sources(paths) if path.suffix == ".py"}


def training_scripts(texts: Mapping[Path, str], report: ScanReport) -> list[str]:
    """Return the files that are run, train, and shard: by what stands in them, or in a file that they import.

    Example:
        >>> from fsdp_migrate.source.uses import ScanReport
        >>> training_scripts({}, ScanReport((), 0))
        []
    """
    sharding = {Path(each.path) for each in report.uses}
    sharding |= {path for path, text in texts.items() if _NAMES_FSDP.search(text)}
    names = {path.stem for path in sharding}
    return [
        str(path)
        for path, text in texts.items()
        if _IS_RUN.search(text)
        and _TRAINS.search(text)
        and not (_TEST.search(path.stem) or path.parent.name in {"test", "tests"})
        and (path in sharding or not names.isdisjoint(_imported(text)))
    ]


def _text(path: Path) -> str:
    try:
        return read_source(path)
    except (OSError, ValueError, SyntaxError):
        return ""


def _imported(text: str) -> set[str]:
    """Return the last names of the modules that a text imports, and the names that it takes of them."""
    found: set[str] = set()
    for module, taken, modules in _IMPORTS.findall(text):
        found |= {module.rpartition(".")[2], *re.findall(r"\w+", taken), *re.findall(r"\w+", modules)}
    return found
