"""What configs that lie beside a checkpoint say of its form."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.storage.folders import Location, is_url, local_path


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


_SUFFIXES: Final = (".yaml", ".yml", ".json")
_MAX_FILES: Final = 100
_MAX_BYTES: Final = 1 << 20
_TYPE: Final = re.compile(r"""(?:fsdp_)?state_dict_type["']?\s*[:=]\s*["']?(\w+)""")
_FULL: Final = frozenset({"FULL_STATE_DICT", "1"})


def full_state_configs(locations: Iterable[Location]) -> list[str]:
    """Return the configs in some folders by which Accelerate and the HF Trainer load the full form.

    Example:
        >>> full_state_configs(["tests/checkpoint/data"])
        []
    """
    found: list[str] = []
    for path in _configs(locations):
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        if any(match[1].upper() in _FULL for match in _TYPE.finditer(text)):
            found.append(str(path))
    return found


def _configs(locations: Iterable[Location]) -> Iterator[Path]:
    """Yield the small config files of folders; those of a service are not looked for."""
    seen: set[Path] = set()
    for location in locations:
        folder = local_path(location)
        if is_url(location) or folder in seen or not folder.is_dir():
            continue
        seen.add(folder)
        try:
            names = sorted(path for path in folder.iterdir() if path.suffix in _SUFFIXES)[:_MAX_FILES]
            yield from (path for path in names if path.is_file() and path.stat().st_size <= _MAX_BYTES)
        except OSError:
            continue
