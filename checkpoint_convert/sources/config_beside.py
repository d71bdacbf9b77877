"""What configs that lie beside a checkpoint say of its form."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Literal

from fsdp_migrate.checkpoint_convert.storage.folders import Location, is_url, local_path


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


_SUFFIXES: Final = (".yaml", ".yml", ".json")
_MAX_FILES: Final = 100
_MAX_BYTES: Final = 1 << 20
_TYPE: Final = re.compile(r"""(?:fsdp_)?state_dict_type["']?\s*[:=]\s*["']?(\w+)""")
# The numbers are those of torch's `StateDictType`, which Accelerate takes too.
_FORMS: Final[dict[str, Literal["full", "sharded"]]] = {
    "FULL_STATE_DICT": "full",
    "1": "full",
    "SHARDED_STATE_DICT": "sharded",
    "3": "sharded",
}


def asked_forms(locations: Iterable[Location]) -> dict[str, Literal["full", "sharded"]]:
    """Return what the configs in the first of some folders say that says anything: the form by their paths.

    Accelerate and the HF Trainer open the one form of a checkpoint that their config names. A config that
    names both, in two blocks, says nothing.

    Example:
        >>> asked_forms(["tests/checkpoint/data"])
        {}
    """
    for folder in _folders(locations):
        found: dict[str, Literal["full", "sharded"]] = {}
        for path in _configs(folder):
            try:
                text = path.read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            words = (match[1].upper() for match in _TYPE.finditer(text))
            forms = {_FORMS[word] for word in words if word in _FORMS}
            if len(forms) == 1:
                found[str(path)] = forms.pop()
        if found:
            return found
    return {}


def _folders(locations: Iterable[Location]) -> Iterator[Path]:
    """Yield the folders among some locations, each once; those of a service are not looked into."""
    seen: set[Path] = set()
    for location in locations:
        folder = local_path(location)
        if not is_url(location) and folder not in seen and folder.is_dir():
            seen.add(folder)
            yield folder


def _configs(folder: Path) -> Iterator[Path]:
    """Yield the small config files of a folder."""
    try:
        names = sorted(path for path in folder.iterdir() if path.suffix in _SUFFIXES)[:_MAX_FILES]
        yield from (path for path in names if path.is_file() and path.stat().st_size <= _MAX_BYTES)
    except OSError:
        return
