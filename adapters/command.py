"""A shell command with FSDP flags: ``--fsdp`` and ``--fsdp_config`` of HF Trainer, or ``accelerate launch``.

The flags become a document, which is converted like any other; what changes in it changes in the command.
Quotes, line continuations and every other word stay. Nothing is run, and no variable is expanded.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from typing import Any

from fsdp_migrate.adapters.accelerate import ACCELERATE_KEYS
from fsdp_migrate.adapters.base import Settings, by_name as keys_by_name, is_known, read_number
from fsdp_migrate.adapters.conversion import TextConversion, convert_text
from fsdp_migrate.errors import ConfigError


_OPERATOR = r"\d*[<>]+&?\d*|[;&|()]+"
_WORD = re.compile(
    rf"{_OPERATOR}|(?:\\(?!\n).|'[^']*'|\"(?:\\.|[^\"\\])*\"|\$\([^()]*\)|[^\s\\'\";&|()<>])+", re.DOTALL
)
_GAP = re.compile(r"(?:\s|\\\n)*\Z")
_HF_FORMER = ("fsdp_transformer_layer_cls_to_wrap", "fsdp_min_num_params")
_BESIDE = ("num_processes", "num_machines", "mixed_precision")


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag: its name, its value (None where it has none), and where both stand in the command."""

    name: str
    value: str | None
    start: int
    end: int
    value_start: int


def read_flags(command: str) -> list[Flag]:
    """Return the flags of a command, ``--name value`` and ``--name=value``; several words are one value.

    Raises:
        ConfigError: A quote is not closed.

    Example:
        >>> [(flag.name, flag.value) for flag in read_flags("python x.py --fsdp 'a b' --bf16")]
        [('fsdp', 'a b'), ('bf16', None)]
    """
    tokens = [(match.start(), match.end(), match.group()) for match in _WORD.finditer(command)]
    try:
        values = [" ".join(shlex.split(text)) for _, _, text in tokens]
    except (ValueError, IndexError) as error:
        msg = f"The command cannot be read: {error}."
        raise ConfigError(msg) from error
    flags = []
    for index, value in enumerate(values):
        if not value.startswith("--") or len(value) < 3:
            continue
        start, end, text = tokens[index]
        name, sign, inline = value[2:].partition("=")
        if sign:
            flags.append(Flag(_key(name), inline, start, end, start + text.index("=") + 1))
            continue
        last = index
        while last + 1 < len(values) and not _ends_a_value(tokens[last + 1][2]):
            last += 1
        taken = last if name == "fsdp" or last == index else index + 1
        words = values[index + 1 : taken + 1]
        value_start = tokens[index + 1][0] if words else end
        flags.append(Flag(_key(name), " ".join(words) or None, start, tokens[taken][1], value_start))
    return flags


def _ends_a_value(text: str) -> bool:
    """Tell whether a word is the next flag, or the shell's: the end of a command or of an array."""
    return text.startswith("-") or re.fullmatch(_OPERATOR, text) is not None


def _key(name: str) -> str:
    return name.replace("-", "_")


def convert_command(command: str, *, settings: Settings | None = None) -> TextConversion:
    """Turn the FSDP1 flags in a shell command into FSDP2's.

    Raises:
        ConfigError: It cannot be read, or has no FSDP flags.

    Example:
        >>> command = "accelerate launch --fsdp_state_dict_type FULL_STATE_DICT --fsdp_sharding_strategy 2 x"
        >>> print(convert_command(command).text.partition("DICT ")[2])
        --fsdp_reshard_after_forward false --fsdp_version 2 x
    """
    flags = read_flags(command)
    by_name = {flag.name: flag for flag in flags}
    if "fsdp" in by_name:
        stack, before = "hf", _hf_document(by_name)
    elif any(name.startswith("fsdp_") and name != "fsdp_config" for name in by_name):
        _refuse_flags_of_scripts(by_name)
        stack, before = "accelerate", _accelerate_document(by_name)
    else:
        msg = "The command has no FSDP flags, such as `--fsdp` of HF Trainer or those of `accelerate launch`."
        raise ConfigError(msg)
    done = convert_text(json.dumps(before), stack=stack, is_json=True, settings=settings)
    if not done.is_changed:
        return TextConversion(command, command, done.blocks, done.findings)
    old, new = (_flags_of(stack, json.loads(text)) for text in (json.dumps(before), done.text))
    return TextConversion(command, _edited(command, by_name, old, new), done.blocks, done.findings)


def _refuse_flags_of_scripts(flags: dict[str, Flag]) -> None:
    """Raise where no flag is one of ``accelerate launch``, which would then be given flags of a script."""
    own = sorted(name for name in flags if name.startswith("fsdp_"))
    known = {f"fsdp_{name.removeprefix('fsdp_')}" for name in keys_by_name(ACCELERATE_KEYS)}
    if not known & set(own):
        listed = ", ".join(f"`--{name}`" for name in own)
        msg = (
            f"The command has no FSDP flags of HF Trainer or of `accelerate launch`: {listed} must be the "
            "script's own. See what the script does with them: `fsdp-migrate scan`."
        )
        raise ConfigError(msg)


def _hf_document(flags: dict[str, Flag]) -> dict[str, Any]:
    document: dict[str, Any] = {"output_dir": "", "fsdp": flags["fsdp"].value or True}
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
    former = {name: flags[name].value for name in _HF_FORMER if name in flags}
    if former and not isinstance(document.get("fsdp_config"), str):
        document["fsdp_config"] = {**former, **document.get("fsdp_config", {})}
    for name in ("bf16", "fp16"):
        if name in flags and str(flags[name].value).lower() in {"true", "none", "1"}:
            document[name] = True
    return document


def _accelerate_document(flags: dict[str, Flag]) -> dict[str, Any]:
    block = {name: flag.value for name, flag in flags.items() if name.startswith("fsdp_")}
    document: dict[str, Any] = {"distributed_type": "FSDP", "fsdp_config": block}
    for name in _BESIDE:
        if name in flags and is_known(flags[name].value):
            number = read_number(flags[name].value)
            document[name] = flags[name].value if number is None else number
    return document


def _flags_of(stack: str, document: dict[str, Any]) -> dict[str, str]:
    """Return the flags that a document stands for, with their values as they stand in a command."""
    if stack == "hf":
        config = document.get("fsdp_config")
        flags = {"fsdp": document["fsdp"]}
        if config is not None:
            flags["fsdp_config"] = config if isinstance(config, str) else json.dumps(config)
        return {name: "true" if value is True else str(value) for name, value in flags.items()}
    flags = {**document["fsdp_config"], **document.get("parallelism_config", {})}
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in flags.items()
    }


def _edited(command: str, flags: dict[str, Flag], old: dict[str, str], new: dict[str, str]) -> str:
    pieces: list[tuple[int, int, str]] = []
    former = [name for name in _HF_FORMER if name in flags and "fsdp" in flags and name not in new]
    gone = [name for name in (*old, *former) if name not in new and name in flags]
    for name in dict.fromkeys(gone):
        gap = _GAP.search(command, 0, flags[name].start)
        pieces.append((gap.start() if gap else flags[name].start, flags[name].end, ""))
    for name, value in new.items():
        flag = flags.get(name)
        is_same = value == old.get(name) and (name != "fsdp_config" or flag is None or flag.value == value)
        if flag is not None and not is_same and not (name == "fsdp" and flag.value is None):
            pieces.append((flag.value_start, flag.end, shlex.quote(value)))
    added = "".join(f" --{name} {shlex.quote(value)}" for name, value in new.items() if name not in flags)
    if any(name.startswith("parallelism_config") for name in new):
        added += " --use_parallelism_config"
    last = max(flag.end for name, flag in flags.items() if name.startswith("fsdp") or name == "use_fsdp")
    pieces.append((last, last, added))
    for start, end, text in sorted(pieces, key=lambda piece: (piece[0], piece[1]), reverse=True):
        command = command[:start] + text + command[end:]
    return command
