"""Lightning's Trainer as the holder of a sharded model: ``trainer.strategy.model``, ``self.trainer.model``.

Under ``FSDPStrategy`` these are FSDP1's; under another strategy they are not, which a source does not tell.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source import catalog


if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from fsdp_migrate.source.python.scopes import Index


_MODEL = re.compile(r"(^|\.)(trainer|strategy)\.(model|lightning_module)$")
_PACKAGES = frozenset({"lightning", "pytorch_lightning"})
_WORD = re.compile(r"^['\"]fsdp(_native|_cpu_offload|_native_full_shard_offload)?['\"]$")

_IMPORTS = re.compile(r"^\s*(from|import)\s+(lightning|pytorch_lightning)\b", re.MULTILINE)
_ASKS = re.compile(r"\bFSDPStrategy\b|\bstrategy['\"]?\]?\s*[=:]\s*['\"]fsdp")
_READS = re.compile(r"\b(trainer|strategy)\.(model|lightning_module)\b")


def is_trainers_model(text: str) -> bool:
    """Tell whether a dotted name is what a Trainer, or its strategy, trains.

    Example:
        >>> is_trainers_model("self.trainer.strategy.model"), is_trainers_model("trainer.models")
        (True, False)
    """
    return _MODEL.search(text) is not None


def trains_by_fsdp1(index: Index, *, is_told: bool) -> bool:
    """Tell whether a source uses Lightning and asks for its FSDP1 strategy, or ``is_told`` that others do."""
    bindings = (each for found in index.scope.bindings.values() for each in found)
    names = {each.qualified for each in bindings if each.qualified is not None}
    if not any(name.split(".")[0] in _PACKAGES for name in names):
        return False
    if is_told or any(
        name.endswith("FSDPStrategy") or catalog.fsdp1_name(name) == catalog.FSDP for name in names
    ):
        return True
    texts = index.by_kind.get(cst.SimpleString, ())
    return any(_WORD.match(cst.ensure_type(each, cst.SimpleString).value) for each in texts)


def using_lightning(texts: Mapping[Path, str]) -> list[Path]:
    """Return the files that import Lightning."""
    return [path for path, text in texts.items() if _IMPORTS.search(text)]


def asking_for_fsdp1(texts: Mapping[Path, str]) -> list[Path]:
    """Return the files that ask Lightning for its FSDP1 strategy."""
    return [path for path in using_lightning(texts) if _ASKS.search(texts[path])]


def trained_elsewhere(texts: Mapping[Path, str]) -> set[Path]:
    """Return the files that ask a Trainer for its model, in a project that trains by Lightning's FSDP1."""
    if not asking_for_fsdp1(texts):
        return set()
    return {path for path in using_lightning(texts) if _READS.search(texts[path])}
