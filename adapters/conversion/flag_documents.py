"""What the flags of a command stand for, as a config of their framework has it, and back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fsdp_migrate.adapters.conversion.flags import Flag, is_on
from fsdp_migrate.adapters.conversion.quoting import with_numbers_as_texts
from fsdp_migrate.adapters.engine.base import is_known, read_number
from fsdp_migrate.adapters.engine.optimizer_names import SMOOTHING
from fsdp_migrate.errors import ConfigError


if TYPE_CHECKING:
    from collections.abc import Callable


HF_FORMER = ("fsdp_transformer_layer_cls_to_wrap", "fsdp_min_num_params")
BESIDE = ("num_processes", "num_machines", "mixed_precision")


def hf_document(flags: dict[str, Flag]) -> dict[str, Any]:
    """Return what HF Trainer's flags stand for.

    Raises:
        ConfigError: ``--fsdp_config`` is no JSON.
    """
    # `output_dir` is by what the adapter knows the Trainer's arguments.
    document: dict[str, Any] = {"output_dir": "", "fsdp": _words(flags["fsdp"])}
    given = flags.get("fsdp_config")
    text = given.value if given is not None else None
    if text is not None and text.lstrip().startswith("{"):
        try:
            document["fsdp_config"] = json.loads(with_numbers_as_texts(text))
        except json.JSONDecodeError as error:
            where = f"line {error.lineno}, column {error.colno}: {error.msg}"
            raise ConfigError(f"`--fsdp_config` is no JSON: {where}.", field="fsdp_config") from error
    elif text is not None:
        document["fsdp_config"] = text
    former = {name: flags[name].value for name in HF_FORMER if name in flags}
    if isinstance(document.get("fsdp_config"), str):
        document |= former
    elif former:
        document["fsdp_config"] = {**former, **document.get("fsdp_config", {})}
    for name in ("bf16", "fp16"):
        if name in flags and is_on(flags[name]):
            document[name] = True
    for name in ("optim", "weight_decay", "max_grad_norm", SMOOTHING):
        if name in flags and flags[name].value:
            document[name] = flags[name].value
    return document


def _words(flag: Flag) -> Any:
    return True if flag.value is None else flag.value


def accelerate_document(
    flags: dict[str, Flag], number: Callable[[str], int | None] | None = None
) -> dict[str, Any]:
    """Return what the flags of ``accelerate launch`` stand for; ``number`` knows those of a script."""
    block = {name: flag.value for name, flag in flags.items() if name.startswith("fsdp_")}
    document: dict[str, Any] = {"distributed_type": "FSDP", "fsdp_config": block}
    if "config_file" in flags:
        document["config_file"] = flags["config_file"].value
    for name in BESIDE:
        if name in flags and is_known(flags[name].value):
            found = (number or read_number)(str(flags[name].value))
            document[name] = flags[name].value if found is None else found
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
