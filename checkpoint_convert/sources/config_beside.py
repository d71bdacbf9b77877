"""What configs that lie beside a checkpoint say of its form."""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING, Final, Literal

from fsdp_migrate.checkpoint_convert.storage.fsspec import open_folder_at
from fsdp_migrate.errors import CheckpointError


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fsdp_migrate.checkpoint_convert.storage.folders import Location


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
    for location in dict.fromkeys(os.fspath(each) for each in locations):
        found: dict[str, Literal["full", "sharded"]] = {}
        for path, text in _configs(location):
            words = (match[1].upper() for match in _TYPE.finditer(text))
            forms = {_FORMS[word] for word in words if word in _FORMS}
            if len(forms) == 1:
                found[path] = forms.pop()
        if found:
            return found
    return {}


def _configs(location: Location) -> Iterator[tuple[str, str]]:
    """Yield path and text of each small config in a folder; what may not be read says nothing."""
    with contextlib.suppress(CheckpointError), contextlib.closing(open_folder_at(location)) as folder:
        sizes = {} if getattr(folder, "only", None) else folder.files(0)
        names = [name for name in sorted(sizes) if name.endswith(_SUFFIXES) and sizes[name] <= _MAX_BYTES]
        for name in names[:_MAX_FILES]:
            with contextlib.suppress(CheckpointError):
                text = folder.read(name, 0, sizes[name]).decode(errors="replace")
                yield f"{folder.url}/{name}", text
