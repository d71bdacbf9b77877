"""Files that give Accelerate or Fabric a model, in a project of which another file asks them for FSDP1."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from fsdp_migrate.source.python.links import NOTHING


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from fsdp_migrate.source.python.links import Links


# By framework: what asks it for FSDP1, what gives it a model, what a file makes that says so by itself, and
# what may ask for FSDP2, so that nothing is told.
_WORDS = {
    "accelerate": (
        re.compile(r"\bFullyShardedDataParallelPlugin\("),
        re.compile(r"ccelerator\.prepare(_model)?\("),
        re.compile(r"\bAccelerator\("),
        re.compile(r"fsdp_version"),
    ),
    "fabric": (
        re.compile(r"\bFSDPStrategy\("),
        re.compile(r"fabric\.setup(_module)?\("),
        re.compile(r"\bFabric\("),
        re.compile(r"\bModelParallelStrategy\("),
    ),
}


def with_frameworks(texts: Mapping[Path, str], links: dict[Path, Links]) -> dict[Path, Links]:
    """Return what each file is told of by the others, with whose Accelerator or Fabric it is given."""
    told: dict[Path, set[str]] = {}
    for name in _WORDS:
        for path in _given(texts, name):
            told.setdefault(path, set()).add(name)
    known = {path: links.get(path, NOTHING) for path in told}
    return links | {path: replace(each, frameworks=frozenset(told[path])) for path, each in known.items()}


def _given(texts: Mapping[Path, str], framework: str) -> Iterator[Path]:
    """Yield the files that are given what another one makes: one of their own says by itself what it does."""
    asks, takes, makes, is_new = _WORDS[framework]
    asking = {path for path, text in texts.items() if asks.search(text)}
    if not asking or any(map(is_new.search, texts.values())):
        return
    if not any(makes.search(text) for text in texts.values()):
        return
    for path, text in texts.items():
        if path not in asking and takes.search(text) and not makes.search(text):
            yield path
