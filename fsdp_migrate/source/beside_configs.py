"""Launch lines that give beside a config of Accelerate's what that does not say: precision, an optimizer."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from fsdp_migrate.errors import FSDPMigrateError
from fsdp_migrate.source.asked_around import ASKS_ACCELERATE, asks
from fsdp_migrate.source.files import read_source


if TYPE_CHECKING:
    from pathlib import Path


_GIVES: Final = re.compile(
    r"--mixed[_-]precision[= ]+(?!['\"]?no\b)|--(?:bf16|fp16)\b(?![= ]+['\"]?(?:[Ff]alse|0)\b)"
)
_STEPS: Final = re.compile(r"--optim(?:izer)?[= ]+['\"]?(?P<name>\w+)")
_NAMED: Final = re.compile(r"--config_file[= ]+['\"]?([^\s'\"]+)")
_HAS_ITS_OWN: Final = re.compile(
    r"^[ \t]*['\"]?mixed_precision['\"]?\s*:\s*['\"]?(?:bf16|fp16|fp8)", re.MULTILINE
)
_VARIABLE: Final = re.compile(r"\A\$(?:\w+|\{\w+\})/")


def adds_to_its_config(script: Path, command: str) -> bool:
    """Tell whether a command gives a config with FSDP1 a precision, or an optimizer that FSDP2 cannot step.

    Args:
        script: The script that the command stands in, from which the config is found.
        command: The command, with its lines put together.
    """
    from fsdp_migrate.adapters.engine.optimizer_names import said_of_optimizer

    is_precision = _GIVES.search(command) is not None
    named = (each["name"] for each in _STEPS.finditer(command))
    is_optimizer = any(said_of_optimizer(name) is not None for name in named)
    text = _config_of(script, command) if is_precision or is_optimizer else ""
    if not asks(text, ASKS_ACCELERATE):
        return False
    return is_optimizer or not has_its_own_precision(text)


def has_its_own_precision(text: str) -> bool:
    """Tell whether a config of Accelerate's says of itself which mixed precision it asks for.

    Example:
        >>> has_its_own_precision("mixed_precision: bf16"), has_its_own_precision("mixed_precision: 'no'")
        (True, False)
    """
    return _HAS_ITS_OWN.search(text) is not None


def _config_of(script: Path, command: str) -> str:
    """Return what the config says that a command names, or nothing."""
    from fsdp_migrate.config_texts import found_from, only_one_called

    named = _NAMED.search(command)
    if named is None:
        return ""
    name = _VARIABLE.sub("", named[1])
    path = found_from(script.parent, name) or only_one_called(script.parent, name)
    try:
        return "" if path is None else read_source(path)
    except FSDPMigrateError:
        return ""
