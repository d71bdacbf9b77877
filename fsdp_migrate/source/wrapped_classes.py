"""Classes of modules that write to weights, in files that shard nothing: another wraps their objects."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source.python.links import NOTHING


if TYPE_CHECKING:
    from pathlib import Path

    from fsdp_migrate.source.project import Project
    from fsdp_migrate.source.python.links import Links


_CLASS: Final = re.compile(r"^class (\w+)\([^)\n]*Module\)", re.MULTILINE)
_WRITES: Final = re.compile(r"\.parameters\(\).*?\.data\b", re.DOTALL)
_WRAPS: Final = "FullyShardedDataParallel"


def with_wrapped_classes(project: Project, links: dict[Path, Links]) -> dict[Path, Links]:
    """Add the classes of each file that write to weights, whose objects a file that uses FSDP1 makes."""
    wrapping = {path: text for path, text in project.texts.items() if _WRAPS in text}
    found = dict(links)
    for path, text in project.texts.items() if wrapping else ():
        if "def forward(" not in text or _WRITES.search(text) is None:
            continue
        others = [other for where, other in wrapping.items() if where != path]
        names = (name for name in _CLASS.findall(text) if _is_made(name, others))
        if made := frozenset(names):
            found[path] = replace(found.get(path, NOTHING), wrapped_classes=made)
    return found


def _is_made(name: str, texts: list[str]) -> bool:
    made = re.compile(rf"(?<!class )\b{re.escape(name)}\(")
    return any(name in text and made.search(text) is not None for text in texts)
