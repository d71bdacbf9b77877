"""Folders of models of transformers in a repository: what has to be given beside a checkpoint of one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from fsdp_migrate.source.files import CONFIGS, find_sources


if TYPE_CHECKING:
    import os
    from collections.abc import Iterable
    from pathlib import Path


_MODEL_CONFIG = "config.json"
_MAX_CONFIG = 1_000_000


def find_models(paths: Iterable[str | os.PathLike[str]]) -> list[str]:
    """Return the folders at and below paths that hold the config of a model of transformers.

    Example:
        >>> find_models(["fsdp_migrate/source"])
        []
    """
    files = (path for path in find_sources(paths, CONFIGS) if path.name == _MODEL_CONFIG)
    return [str(path.parent) for path in files if _is_model_config(path)]


def _is_model_config(path: Path) -> bool:
    try:
        if path.stat().st_size > _MAX_CONFIG:
            return False
        found = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and "model_type" in found and bool(found.get("architectures"))
