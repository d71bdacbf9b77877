"""FSDP1 arguments in a file: a mapping of the keyword arguments of ``FullyShardedDataParallel``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from fsdp_migrate.config import FSDP1Config
from fsdp_migrate.errors import ConfigError


if TYPE_CHECKING:
    import os


def read_config_file(path: str | os.PathLike[str]) -> FSDP1Config:
    """Read FSDP1 arguments from a file, as words: ``sharding_strategy: FULL_SHARD``.

    JSON is read as the YAML that it is. Nothing but plain values is built from the file.

    Raises:
        ConfigError: There is no such file, it is no YAML, no mapping, or an argument means nothing.
    """
    file = Path(path)
    if not file.is_file():
        msg = f"There is no file {str(file)!r} to read FSDP1 arguments from."
        raise ConfigError(msg)
    try:
        data: Any = YAML(typ="safe", pure=True).load(file.read_text(encoding="utf-8"))
    except (YAMLError, UnicodeDecodeError) as error:
        msg = f"{str(file)!r} is no YAML and no JSON: {error}"
        raise ConfigError(msg) from error
    if not isinstance(data, Mapping) or not all(isinstance(key, str) for key in data):
        msg = (
            f"{str(file)!r} holds a {type(data).__name__}; expected a mapping of the keyword arguments of "
            "FullyShardedDataParallel, such as `sharding_strategy: FULL_SHARD`."
        )
        raise ConfigError(msg)
    return FSDP1Config(**data)
