"""Files in the words of Hugging Face's Trainer that code of the project reads by itself.

Converted, their keys have other names, and the code that looks them up stops.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fsdp_migrate.errors import FSDPMigrateError
from fsdp_migrate.source import catalog
from fsdp_migrate.source.files import SUFFIXES, find_sources, read_source


if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence

    from fsdp_migrate.source.surroundings import ConfigFound


_ARGUMENTS = frozenset({"fsdp", "fsdp_config"})
_READS = "{} looks its keys up itself: leave it, prepare_fully_shard takes FSDP1's arguments."


def with_own(configs: Sequence[ConfigFound], paths: Iterable[str | os.PathLike[str]]) -> list[ConfigFound]:
    """Return configs, those that sources with FSDP1 read left to these: they name the file, and its keys.

    Example:
        >>> with_own([], ["examples"])
        []
    """
    asked = {each.path: keys for each in configs if each.state == "changes" and (keys := _keys(each))}
    if not asked:
        return list(configs)
    readers: dict[str, str] = {}
    for file in find_sources(paths, SUFFIXES):
        try:
            text = read_source(file) if file.suffix in SUFFIXES else ""
        except FSDPMigrateError:
            continue
        if catalog.FSDP in text:
            readers.update((path, str(file)) for path, keys in asked.items() if _reads(text, path, keys))
    return [
        replace(each, framework="", state="unclear", message=_READS.format(reader), holds_arguments=True)
        if (reader := readers.get(each.path))
        else each
        for each in configs
    ]


def _keys(config: ConfigFound) -> list[str]:
    """Return the keys of the file that ``fsdp_config`` may name; none of one with the Trainer's arguments."""
    path = Path(config.path)
    if config.framework != "hf" or path.suffix != ".json":
        return []
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return []
    is_theirs = not isinstance(found, dict) or not _ARGUMENTS.isdisjoint(found)
    return [] if is_theirs else list(found)


def _reads(text: str, path: str, keys: Iterable[str]) -> bool:
    """Tell whether a source names a file and looks one of its keys up: ``config["min_num_params"]``."""
    every = "|".join(map(re.escape, keys))
    looked_up = rf"""(?:\w\[|\.get\(\s*)['"](?:{every})['"]"""
    return Path(path).name in text and re.search(looked_up, text) is not None
