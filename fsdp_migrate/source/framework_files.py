"""Files that give Accelerate or Fabric a model, in a project of which one asks them for FSDP1."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from fsdp_migrate.source.framework_models import FrameworkModels
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
# What asks for FSDP1 in the file itself that gives it a model.
_OWN = {
    "accelerate": re.compile(
        r"\bFullyShardedDataParallelPlugin\(|\bfsdp_plugin\s*=\s*(?!None)\w"
        r"|\benviron\[.ACCELERATE_USE_FSDP.\]\s*=\s*['\"](?i:1|true|yes)['\"]"
    ),
    "fabric": re.compile(r"\bFSDPStrategy\(|\bFabric\([^()]*strategy\s*=\s*['\"]fsdp"),
}


def with_frameworks(texts: Mapping[Path, str], links: dict[Path, Links]) -> dict[Path, Links]:
    """Return what each file is told of by the others, with whose Accelerator or Fabric it is given."""
    told: dict[Path, set[str]] = {}
    for name in _WORDS:
        for path in _given(texts, name):
            told.setdefault(path, set()).add(name)
    known = {path: links.get(path, NOTHING) for path in told}
    return links | {path: replace(each, frameworks=frozenset(told[path])) for path, each in known.items()}


def framework_models(texts: Mapping[Path, str]) -> FrameworkModels:
    """Return the models of the files that ask for FSDP1 themselves, or are given what another one makes."""
    users: dict[str, set[Path]] = {}
    for name, (_, takes, _, is_new) in _WORDS.items():
        own = {
            path
            for path, text in texts.items()
            if _OWN[name].search(text) and takes.search(text) and not is_new.search(text)
        }
        found = own.union(_given(texts, name))
        users |= {name: found} if found else {}
    return FrameworkModels(users)


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
