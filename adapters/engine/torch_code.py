"""Any framework's FSDP1 settings as a call in plain torch, which ``prepare_fully_shard`` understands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fsdp_migrate.adapters.engine.lightning_hook import source_of
from fsdp_migrate.config import FSDP1Config


if TYPE_CHECKING:
    from collections.abc import Mapping


def torch_call(arguments: Mapping[str, Any]) -> str:
    """Return Python that shards ``model`` as FSDP1 arguments, given as words, say.

    Raises:
        ConfigError: An argument means nothing.

    Example:
        >>> print(torch_call({"sharding_strategy": "full_shard", "use_orig_params": True}))
        from fsdp_migrate import prepare_fully_shard
        <BLANKLINE>
        arguments = {
            "sharding_strategy": "FULL_SHARD",
            "use_orig_params": True,
        }
        model = prepare_fully_shard(model, arguments)
        <BLANKLINE>
    """
    config = FSDP1Config(**arguments)
    lines = [
        f'    "{name}": {_quoted(_plain(getattr(config, name)))},\n'
        for name in FSDP1Config.model_fields
        if name in config.model_fields_set
    ]
    return (
        "from fsdp_migrate import prepare_fully_shard\n\n"
        f"arguments = {{\n{''.join(lines)}}}\nmodel = prepare_fully_shard(model, arguments)\n"
    )


def _plain(value: Any) -> Any:
    """Return the words of a part of the config, those that were given."""
    names = getattr(type(value), "model_fields", None)
    argument = getattr(type(value), "argument", "")
    if names is None or not argument:
        return value
    return {name: getattr(value, name) for name in names if name in value.model_fields_set}


def _quoted(value: Any) -> str:
    return source_of(value).replace("'", '"')
