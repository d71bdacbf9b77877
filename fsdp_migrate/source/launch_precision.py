"""Launch lines that give a config of Accelerate's the mixed precision that it does not name itself."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from fsdp_migrate.errors import FSDPMigrateError
from fsdp_migrate.source.asked_around import ASKS_ACCELERATE, asks
from fsdp_migrate.source.files import read_source


if TYPE_CHECKING:
    from pathlib import Path


_GIVES: Final = re.compile(r"--mixed[_-]precision[= ]+(?!['\"]?no\b)")
_NAMED: Final = re.compile(r"--config_file[= ]+['\"]?([^\s'\"]+)")
_HAS_ITS_OWN: Final = re.compile(
    r"^[ \t]*['\"]?mixed_precision['\"]?\s*:\s*['\"]?(?:bf16|fp16|fp8)", re.MULTILINE
)
_VARIABLE: Final = re.compile(r"\A\$(?:\w+|\{\w+\})/")


def gives_precision(script: Path, command: str) -> bool:
    """Tell whether a command gives a config with FSDP1 a precision that is not said there.

    Args:
        script: The script that the command stands in, from which the config is found.
        command: The command, with its lines put together.
    """
    from fsdp_migrate.config_texts import found_from, only_one_called

    named = _NAMED.search(command) if _GIVES.search(command) else None
    if named is None:
        return False
    name = _VARIABLE.sub("", named[1])
    path = found_from(script.parent, name) or only_one_called(script.parent, name)
    try:
        text = "" if path is None else read_source(path)
    except FSDPMigrateError:
        return False
    return asks(text, ASKS_ACCELERATE) and _HAS_ITS_OWN.search(text) is None
