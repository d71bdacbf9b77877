"""HF Trainer's arguments behind the script that ``accelerate launch`` starts: they count beside its flags."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from fsdp_migrate.adapters.conversion.environment import told_of_precision
from fsdp_migrate.adapters.conversion.flags import Flag, is_on
from fsdp_migrate.adapters.conversion.shell import launch_of, words_of
from fsdp_migrate.adapters.conversion.text import convert_text
from fsdp_migrate.adapters.engine.low_rank import trains_low_rank_alone
from fsdp_migrate.adapters.engine.optimizer_names import OF_BITSANDBYTES, SMOOTHING
from fsdp_migrate.adapters.hf_trainer import STRONG


if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fsdp_migrate.adapters.engine.settings import Settings
    from fsdp_migrate.findings import Finding


_IN_4_BITS = frozenset({"load_in_4bit", "use_4bit", "use_4bit_quantization", "use_qlora"})
_BITS = "quantization_bit"


def precision_of(of_script: Mapping[str, Flag], flags: Mapping[str, Flag]) -> tuple[str, str]:
    """Return the flag that says the precision of a command, and which; it beats a file's.

    HF Trainer's arguments, which stand behind the script, count before those of ``accelerate launch``.
    """
    for name in ("bf16", "fp16"):
        if name in of_script and STRONG & set(of_script) and is_on(of_script[name]):
            return name, name
    given = flags.get("mixed_precision")
    return "mixed_precision", (given.value if given is not None else None) or "no"


def decays_by_no_name(of_script: Mapping[str, Flag]) -> bool:
    """Tell whether the script is an HF Trainer's by its arguments, and these leave no names to its decay.

    They give no weight decay, or train low-rank matrices alone.
    """
    given = of_script.get("weight_decay")
    try:
        is_off = float(given.value or 0 if given else 0) == 0
    except ValueError:
        is_off = False
    values = {name: flag.value or "true" for name, flag in of_script.items()}
    return bool(STRONG & set(of_script)) and (is_off or trains_low_rank_alone(values))


def packs_weights(command: str, of_script: Iterable[Flag], settings: Settings) -> bool:
    """Tell whether a script is told to load weights in 4 bits: by its arguments, or a file that they name."""
    for flag in of_script:
        value = (flag.value or "true").lower()
        if (flag.name in _IN_4_BITS and value == "true") or (flag.name == _BITS and value == "4"):
            return True
    at = launch_of(words_of(command)).script_at
    behind = [word.value for word in words_of(command) if at is not None and word.start > at]
    return any(name.endswith((".yaml", ".yml", ".json")) and settings.names_packed(name) for name in behind)


def told_of_arguments(of_script: Mapping[str, Flag], flags: Mapping[str, Flag]) -> list[Finding]:
    """Return what FSDP2 does otherwise in a command's precision, and with its script's arguments."""
    name, precision = precision_of(of_script, flags)
    return [*told_of_precision(precision, name), *_told_of_the_trainers(of_script)]


def _told_of_the_trainers(of_script: Mapping[str, Flag]) -> list[Finding]:
    given = {name: of_script[name].value for name in ("optim", SMOOTHING) if name in of_script}
    # A script may hand the name of an optimizer to the Trainer by an argument of its own.
    is_trainers = bool(STRONG & set(of_script)) or given.get("optim") in OF_BITSANDBYTES
    if not any(given.values()) or not is_trainers:
        return []
    document = json.dumps({"output_dir": "", "fsdp": "full_shard", **given})
    done = convert_text(document, framework="hf", is_json=True)
    return [found for found in done.findings if found.subject in given]
