"""Classes of a project's modules that go through their own parameters in a forward, and are sharded whole."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source.python.links import NOTHING


if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from fsdp_migrate.source.python.links import Links


_GOES_THROUGH: Final = re.compile(r"\bself(?:\.\w+)*\.(?:named_)?parameters\(")
_CLASS: Final = re.compile(r"^class (\w+)\b", re.MULTILINE)
_CLASSES: Final = re.compile(r"^class \w+\b.*?(?=^\S|\Z)", re.MULTILINE | re.DOTALL)
_RUNS: Final = re.compile(r"^[ \t]+def forward\(", re.MULTILINE)
_SHARDS: Final = re.compile(r"\bFullyShardedDataParallel\b|\bprepare_fully_shard\b")
# An attribute of a module that is made of a class: a part, which is gathered while its own forward runs.
_PART: Final = r"\bself\.\w+\s*(?::[^=\n]*)?=\s*(?:\w+\.)*{}\("


def with_sharded_classes(
    texts: Mapping[Path, str], links: dict[Path, Links], files: Collection[Path]
) -> dict[Path, Links]:
    """Add the classes that go through their own parameters, and that a file which shards has by name.

    Not those that are parts of others: ``self.encoder = Encoder(config)``. ``files``: those whose models a
    framework shards.
    """
    likely = {
        path: text for path, text in texts.items() if "def forward(" in text and _GOES_THROUGH.search(text)
    }
    sharding = [text for path, text in texts.items() if path in files or _SHARDS.search(text)]
    found = dict(links)
    for path, text in likely.items() if sharding else ():
        names = (name for name in _CLASS.findall(text) if _is_made(name, sharding, texts))
        wholes = frozenset(name for name in names if not is_part(name, texts.values()))
        if wholes:
            found[path] = replace(found.get(path, NOTHING), sharded_classes=wholes)
    return found


def _is_made(name: str, sharding: Collection[str], texts: Mapping[Path, str]) -> bool:
    """Tell whether what shards has a class by name, or a function gives an object of it."""
    word, given = re.compile(rf"(?<!class )\b{name}\b"), re.compile(rf"\breturn {name}(?:\.\w+)?\(")
    return any(map(word.search, sharding)) or any(map(given.search, texts.values()))


def is_part(name: str, texts: Collection[str]) -> bool:
    r"""Tell whether modules make objects of a class parts of theirs: ``self.encoder = Encoder(config)``.

    Example:
        >>> made = "class Net:\n def forward(self, x): pass\n def make(self): self.head = parts.Head(8)\n"
        >>> [is_part("Head", [text]) for text in (made, made.replace("forward", "train"))]
        [True, False]
    """
    part = re.compile(_PART.format(name))
    return any(
        part.search(owner) is not None and _RUNS.search(owner) is not None
        for text in texts
        if name in text
        for owner in _CLASSES.findall(text)
    )
