"""Models whose kind the project defines itself: of their ``config.json`` transformers alone makes none."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fsdp_migrate.errors import FSDPMigrateError
from fsdp_migrate.source.files import SUFFIXES, find_sources, read_source


if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence


_CONFIG: Final = "config.json"
_KIND: Final = "model_type"


def of_transformers(models: Sequence[str], paths: Iterable[str | os.PathLike[str]]) -> list[str]:
    """Return the folders of models whose kind no source of the project defines.

    Args:
        models: Folders with the ``config.json`` of a model.
        paths: The files and folders of the project.

    Example:
        >>> of_transformers([], ["examples"])
        []
    """
    kinds = {folder: kind for folder in models if (kind := _kind_of(Path(folder))) is not None}
    if not kinds:
        return list(models)
    words = "|".join(map(re.escape, sorted(set(kinds.values()))))
    sets = re.compile(rf"^[ \t]+{_KIND}\b[^=\n]*=[ \t]*['\"]({words})['\"]", re.MULTILINE)
    own = {each[1] for file in find_sources(paths, SUFFIXES) for each in sets.finditer(_text_of(file))}
    return [folder for folder in models if kinds.get(folder) not in own]


def _kind_of(folder: Path) -> str | None:
    try:
        found = json.loads((folder / _CONFIG).read_text())
    except (OSError, ValueError, RecursionError):
        return None
    kind = found.get(_KIND) if isinstance(found, dict) else None
    return kind if isinstance(kind, str) else None


def _text_of(file: Path) -> str:
    try:
        return read_source(file) if file.suffix in SUFFIXES else ""
    except FSDPMigrateError:
        return ""
