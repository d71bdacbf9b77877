"""Accelerate's variables that a script hands on: HF Trainer's FSDP1 takes them where ``--fsdp`` does not say.

The Trainer gives Accelerate's plugin no strategy where ``fsdp`` names none (transformers 4.x sets
``FSDP_SHARDING_STRATEGY`` only for a word in ``fsdp``), and before 5.10 no type of state dicts: the plugin
takes both from the environment then. Its FSDP2 does not read the strategy.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fsdp_migrate.adapters.conversion.variables import without_comments
from fsdp_migrate.adapters.document.nodes import REFERENCE
from fsdp_migrate.adapters.engine.accelerate_switch import SWITCH
from fsdp_migrate.adapters.engine.shared_keys import strategy_of
from fsdp_migrate.adapters.hf_environment import HF_STRATEGIES, STATE_DICT_TYPE, STRATEGY
from fsdp_migrate.adapters.hf_offload import OFFLOAD
from fsdp_migrate.words import bare_word


if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from fsdp_migrate.adapters.engine.settings import Settings


_GIVEN = re.compile(
    rf"(?:^|(?<=[\s;,\"']))({STRATEGY}|{STATE_DICT_TYPE}|{SWITCH}|{OFFLOAD})="
    r"(\"[^\"\n]*\"|'[^'\n]*'|[^\s;\"'&|,]*)(?=(?P<rest>[^\n]*))",
    re.MULTILINE,
)


def exported_to_accelerate(text: str) -> dict[str, str]:
    r"""Return these variables with what a script, or a command, hands on; what has two values as a variable.

    Example:
        >>> exported_to_accelerate("export FSDP_SHARDING_STRATEGY=5 # five\npython t.py")
        {'FSDP_SHARDING_STRATEGY': '5'}
        >>> exported_to_accelerate("FSDP_SHARDING_STRATEGY=5\npython t.py")  # stays in the shell
        {}
    """
    bare = without_comments(f"\n{text}")[1:]
    found: dict[str, set[str]] = {}
    for match in _GIVEN.finditer(bare):
        if _is_handed_on(match, bare):
            found.setdefault(match[1], set()).add(match[2].strip("\"'"))
    return {
        name: next(iter(values)) if len(values) == 1 else f"${name}"
        for name, values in found.items()
        if values != {""}
    }


def with_exports(settings: Settings, text: str) -> Settings:
    """Return settings with what a text hands on, beside what is handed on around it."""
    return replace(settings, environment={**settings.environment, **exported_to_accelerate(text)})


def as_command(settings: Settings, flags: Container[str], *, is_launched: bool) -> Settings:
    """Return settings for the flags of a command; what ``accelerate launch`` runs as FSDP has these set."""
    launched = {SWITCH: "true", OFFLOAD: "true"} if is_launched else {}
    environment = {**settings.environment, **launched}
    return replace(settings, is_command=True, adds_json="fsdp_config" not in flags, environment=environment)


def with_strategy(fsdp: Any, handed_on: Mapping[str, str]) -> Any:
    """Return ``fsdp`` with the strategy that FSDP1 takes from these variables, where it names none.

    Example:
        >>> with_strategy("auto_wrap", {"FSDP_SHARDING_STRATEGY": "2"}), with_strategy("full_shard", {})
        ('auto_wrap shard_grad_op', 'full_shard')
    """
    given = handed_on.get(STRATEGY)
    if given is None or REFERENCE.search(given) or not isinstance(fsdp, str) or not fsdp.split():
        return fsdp
    if REFERENCE.search(fsdp) or HF_STRATEGIES & {bare_word(word) for word in fsdp.split()}:
        return fsdp
    return f"{fsdp} {strategy_of(given, STRATEGY).lower().lstrip('_')}"


def _is_handed_on(match: re.Match[str], bare: str) -> bool:
    """Tell whether programs get a variable: by ``export``, by ``set -a``, or as the word before a command."""
    name = match[1]
    line = bare[bare.rfind("\n", 0, match.start()) + 1 : match.start()]
    before_command = re.match(r"[ \t]+[^\s;&|#]", match["rest"]) is not None
    exported = rf"^[ \t]*(?:export|declare[ \t]+-\w*x\w*)\b[^\n]*\b{name}\b|^[ \t]*set[ \t]+-\w*a"
    return bool(
        before_command
        or re.search(r"\b(?:export|env)\b|--export=|declare[ \t]+-\w*x", line)
        or re.search(exported, bare, re.MULTILINE)
    )
