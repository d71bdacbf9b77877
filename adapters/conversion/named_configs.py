"""Files of settings that a script without flags of FSDP names: which of them have FSDP settings."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fsdp_migrate.adapters.conversion.unknown import with_stand_ins
from fsdp_migrate.adapters.conversion.variables import without_comments
from fsdp_migrate.findings import named


if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


_FILE = re.compile(r"(?<![\w./$}-])(?:\$\{?\w+\}?/|\./)?((?!-)[\w./-]+\.(?:json|ya?ml))\b")
_SETTINGS = re.compile(
    r"^[\s{,]*[\"']?fsdp\w*[\"']?\s*:(?!\s*(?:null|false|\[\]|\{\}|[\"']{2})?\s*(?:#|$))|:\s*FSDP\s*$",
    re.MULTILINE,
)
_FARTHEST = 4
_MOST_BYTES = 1 << 20


def say_named(text: str, folder: Path, said: str = "") -> str:
    """Say which files with FSDP settings a script names, with the commands that convert them.

    Args:
        text: The script.
        folder: Where it lies; its names may be those of a folder above.
        said: What is said of it already: files that are named there are left out.
    """
    found = [name for name in _with_settings(text, folder) if f"config {name}" not in said]
    commands = " and ".join(f"`fsdp-migrate config {name}`" for name in found[:3])
    return f"It names {named(found, 3)}, with FSDP settings: {commands}." if found else ""


def _with_settings(text: str, folder: Path) -> Iterator[str]:
    for name in dict.fromkeys(_FILE.findall(with_stand_ins(without_comments(f"\n{text}")))):
        for above in (folder, *folder.absolute().parents[:_FARTHEST]):
            path = above / name
            try:
                holds = path.stat().st_size <= _MOST_BYTES and path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError):
                continue
            if holds and _SETTINGS.search(holds):
                yield name
            break
