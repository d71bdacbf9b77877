"""The documents that the FSDP flags of a command stand for, and the flags that a document stands for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fsdp_migrate.adapters.conversion.flags import is_on
from fsdp_migrate.adapters.engine.base import is_known, read_number
from fsdp_migrate.errors import ConfigError


if TYPE_CHECKING:
    from fsdp_migrate.adapters.conversion.flags import Flag


HF_FORMER = ("fsdp_transformer_layer_cls_to_wrap", "fsdp_min_num_params")
"""HF Trainer's flags that older versions had beside ``--fsdp_config``."""
BESIDE = ("num_processes", "num_machines", "mixed_precision")
"""Accelerate's flags that its FSDP settings are read with."""


def hf_document(flags: dict[str, Flag]) -> dict[str, Any]:
    """Return HF Trainer's flags as its arguments.

    Raises:
        ConfigError: What ``--fsdp_config`` has is no JSON.
    """
    # `output_dir` is by what the adapter knows the Trainer's arguments.
    document: dict[str, Any] = {"output_dir": "", "fsdp": _words_of(flags["fsdp"])}
    given = flags.get("fsdp_config")
    text = given.value if given is not None else None
    if text is not None and text.lstrip().startswith("{"):
        try:
            document["fsdp_config"] = json.loads(text)
        except json.JSONDecodeError as error:
            msg = f"`--fsdp_config` is no JSON: line {error.lineno}, column {error.colno}: {error.msg}."
            raise ConfigError(msg, field="fsdp_config") from error
    elif text is not None:
        document["fsdp_config"] = text
    former = {name: flags[name].value for name in HF_FORMER if name in flags}
    if former and not isinstance(document.get("fsdp_config"), str):
        document["fsdp_config"] = {**former, **document.get("fsdp_config", {})}
    for name in ("bf16", "fp16"):
        if name in flags and is_on(flags[name]):
            document[name] = True
    if "optim" in flags and flags["optim"].value:
        document["optim"] = flags["optim"].value
    return document


def _words_of(flag: Flag) -> Any:
    return True if flag.value is None else flag.value


def accelerate_document(flags: dict[str, Flag]) -> dict[str, Any]:
    """Return the flags of ``accelerate launch`` as its config."""
    block = {name: flag.value for name, flag in flags.items() if name.startswith("fsdp_")}
    document: dict[str, Any] = {"distributed_type": "FSDP", "fsdp_config": block}
    if "config_file" in flags:
        document["config_file"] = flags["config_file"].value
    for name in BESIDE:
        if name in flags and is_known(flags[name].value):
            number = read_number(flags[name].value)
            document[name] = flags[name].value if number is None else number
    return document


def as_flags(framework: str, document: dict[str, Any]) -> dict[str, str]:
    """Return the flags that a document stands for, with their values as they stand in a command."""
    if framework == "hf":
        config = document.get("fsdp_config")
        flags = {"fsdp": document["fsdp"]}
        if config is not None:
            flags["fsdp_config"] = config if isinstance(config, str) else json.dumps(config)
        return {name: "true" if value is True else str(value) for name, value in flags.items()}
    flags = {**document["fsdp_config"], **document.get("parallelism_config", {})}
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in flags.items()
    }
