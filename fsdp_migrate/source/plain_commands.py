"""Commands that certainly ask for no FSDP: by their flags, and by the config that they name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source.asked_around import COMMENT
from fsdp_migrate.source.shown_commands import folders_of


if TYPE_CHECKING:
    from pathlib import Path


# What may ask for FSDP itself: variables with arguments, a config of the arguments.
_OPEN: Final = re.compile(
    r"(?<!\S)['\"]?[$@`]|(?:\s|--\w*conf\w*=)['\"]?[\w./-]+\.(?:json|toml|ya?ml)\b|\beval\b"
)
_OPEN_FLAGS: Final = re.compile(r"(?<!\S)['\"]?[$@`]|\beval\b")
# `--num_processes $N`: of one flag before the script the value.
_VALUES: Final = re.compile(r"--[\w-]+(?:=|[ ]+)['\"]?\$\{?\w+\}?['\"]?(?=\s|$)")
_LAUNCH: Final = re.compile(
    r"\baccelerate(?:[ ]+|\.commands\.)launch\b(?P<flags>.*?)(?=\s-m\s|[\w./-]+\.py\b|$)"
)
# Accelerate takes one of these, or `--use_fsdp`, and looks into no config for the others.
_OTHER_KIND: Final = re.compile(r"--(?:multi[_-]gpu|tpu|use[_-](?:deepspeed|megatron[_-]lm))\b")
_CONFIG: Final = re.compile(r"--config[_-]file(?:[ ]*=[ ]*|[ ]+)['\"]?(?P<name>[^\s'\"]+)['\"]?")
_KIND: Final = re.compile(r"^[\s{]*['\"]?distributed_type['\"]?\s*:\s*['\"]?(\w+)", re.MULTILINE)
# Hugging Face's Trainer refuses `--fsdp` beside it.
_DEEPSPEED: Final = re.compile(r"--deepspeed(?:_config)?(?:=|[ ]+)['\"]?(?![-$'\"])[^\s'\"]+['\"]?")
_TRAINERS: Final = re.compile(r"--deepspeed(?:=|[ ]+)['\"]?(?![-$'\"])[^\s'\"]")


def asks_nothing(place: Path, command: str, *, by_arguments: bool = True) -> bool:
    """Tell whether a command of a script or a page asks for no FSDP, and names nothing unseen that may.

    ``by_arguments``: the script's own arguments may ask for it, as those of Hugging Face's Trainer do.

    Example:
        >>> from pathlib import Path
        >>> run = Path("run.sh")
        >>> asks_nothing(run, "torchrun train.py"), asks_nothing(run, "accelerate launch train.py")
        (True, False)
    """
    launch = _LAUNCH.search(command)
    if launch is None and "accelerate" in command:
        return False
    if launch is not None and not _is_plain_launch(place, launch["flags"]):
        return False
    if _TRAINERS.search(command) is not None or (launch is not None and not by_arguments):
        return True
    given = command if launch is None else command[: launch.start()] + command[launch.end() :]
    return _OPEN.search(_DEEPSPEED.sub("", given)) is None


def _is_plain_launch(place: Path, flags: str) -> bool:
    """Tell whether Accelerate is told something else than FSDP, by a flag or by its config."""
    if _OPEN_FLAGS.search(_VALUES.sub("", flags)) is not None:
        return False
    named = _CONFIG.search(flags)
    return _OTHER_KIND.search(flags) is not None or (
        named is not None and _is_plain_config(place, named["name"])
    )


def configs_of(place: Path, command: str) -> list[Path]:
    """Return the configs that a command of a file names for Accelerate, and that are there.

    Example:
        >>> from pathlib import Path
        >>> configs_of(Path("run.sh"), "accelerate launch --config_file none.yaml train.py")
        []
    """
    launch = _LAUNCH.search(command)
    named = _CONFIG.search(launch["flags"]) if launch is not None else None
    return [] if named is None else _found(place, named["name"])


def _found(place: Path, name: str) -> list[Path]:
    return [folder / name for folder in folders_of(place) if (folder / name).is_file()]


def _is_plain_config(place: Path, name: str) -> bool:
    """Tell whether a config is there, and has Accelerate do something else than FSDP."""
    found = _found(place, name)
    return bool(found) and all(map(_is_of_another_kind, found))


def _is_of_another_kind(config: Path) -> bool:
    try:
        kinds = _KIND.findall(COMMENT.sub("", config.read_text()))
    except (OSError, ValueError):
        return False
    return bool(kinds) and not any(each.upper() == "FSDP" for each in kinds)
