"""FSDP settings that a script gives to Accelerate as variables of the environment."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from fsdp_migrate.adapters.accelerate import ACCELERATE_KEYS
from fsdp_migrate.adapters.conversion.text import BlockReport, convert_text
from fsdp_migrate.adapters.conversion.unknown import SWITCH
from fsdp_migrate.adapters.conversion.variables import without_comments
from fsdp_migrate.adapters.engine.base import by_name
from fsdp_migrate.adapters.engine.claims import ACCELERATE
from fsdp_migrate.adapters.engine.shared_keys import LOADED_BY_RANK_0
from fsdp_migrate.errors import ConfigError
from fsdp_migrate.findings import Finding, make_finding, named


if TYPE_CHECKING:
    from fsdp_migrate.adapters.engine.base import Settings


_PRECISION = "ACCELERATE_MIXED_PRECISION"
_CLASSES = "FSDP_TRANSFORMER_CLS_TO_WRAP"
_KNOWN = {f"FSDP_{name.upper()}": f"fsdp_{name}" for name in by_name(ACCELERATE_KEYS)}
_KEYS = {**_KNOWN, _CLASSES: "fsdp_transformer_layer_cls_to_wrap"}
_NAMES = {key: name for name, key in _KEYS.items() if name != "FSDP_TRANSFORMER_LAYER_CLS_TO_WRAP"}
_GIVEN = re.compile(
    rf"(?:^|(?<=[\s;\"']))({SWITCH}|{_PRECISION}|FSDP_[A-Z_]+)=(\"[^\"\n]*\"|'[^'\n]*'|[^\s;\"'&|]*)",
    re.MULTILINE,
)
_LOADING = "FSDP_CPU_RAM_EFFICIENT_LOADING"
_IGNORED = "FSDP_IGNORED_MODULES"
_SAME = frozenset({SWITCH, _LOADING})
_OFF = frozenset({"", "0", "false", "no", "off"})


def told_by_environment(
    text: str, settings: Settings | None = None
) -> tuple[tuple[BlockReport, ...], tuple[Finding, ...]]:
    """Return what a script tells Accelerate by variables, and what it has to tell for FSDP2.

    They count only beside ``ACCELERATE_USE_FSDP``, without which Accelerate does not read them.

    Example:
        >>> told_by_environment("ACCELERATE_USE_FSDP=1 python t.py")[0][0].state
        'unchanged'
        >>> told_by_environment("FSDP_CONFIG=a.json")
        ((), ())
    """
    # Comments are known by the space before them, which the first line has not.
    bare = without_comments(f"\n{text}")[1:]
    found = list(_GIVEN.finditer(bare))
    every = {match[1]: match[2].strip("\"'") for match in found}
    given = {name: value for name, value in every.items() if name == SWITCH or name in _KEYS}
    if given.get(SWITCH, "").lower() in _OFF:
        return (), ()
    first = next(match for match in found if match[1] == SWITCH)
    place = f"line {bare.count(chr(10), 0, first.start(1)) + 1}"
    listed = named(sorted(given), 8)
    if given.get("FSDP_VERSION") == "2":
        message = f"{listed} in the environment: it is FSDP2 of Accelerate already."
        finding = make_finding("FM347", f"{place}: {SWITCH}", message)
        return (BlockReport("accelerate", place, "fsdp2"),), (finding,)
    message = f"Accelerate reads FSDP settings from the environment: {listed}. Left as they are."
    finding = make_finding(
        "FM355", f"{place}: {SWITCH}", message, _hint(given, settings) + _of_loading(given)
    )
    casts = told_of_precision(every.get(_PRECISION, "no"), f"{place}: {_PRECISION}")
    return (BlockReport("accelerate", place, "unchanged"),), (finding, *casts)


def told_of_precision(precision: str, subject: str) -> list[Finding]:
    """Return what Accelerate's FSDP2 casts otherwise in a precision that stands apart from FSDP's settings.

    Example:
        >>> [finding.code for finding in told_of_precision("bf16", "here")], told_of_precision("no", "here")
        (['FM354'], [])
    """
    document = json.dumps({"distributed_type": "FSDP", "mixed_precision": precision})
    done = convert_text(document, framework="accelerate", is_json=True)
    return [replace(found, subject=subject) for found in done.findings if found.code == "FM354"]


def _of_loading(given: dict[str, str]) -> str:
    """Return what is said of ``fsdp_cpu_ram_efficient_loading`` in a config, where the variable is on."""
    if given.get(_LOADING, "").lower() in _OFF:
        return ""
    lost = f" {ACCELERATE['ignores_nothing'].says}." if given.get(_IGNORED) else ""
    return f" {LOADED_BY_RANK_0} ({_LOADING}=false).{lost[:1]}{lost[1:2].upper()}{lost[2:]}"


def _hint(given: dict[str, str], settings: Settings | None) -> str:
    if set(given) <= _SAME:
        return (
            "They mean the same under FSDP2. HF Trainer's `fsdp_config` or a config file says which of the "
            "two runs; where nothing else does, set `FSDP_VERSION=2` too, and "
            "`FSDP_STATE_DICT_TYPE=FULL_STATE_DICT`, which only FSDP1 takes by itself."
        )
    block = {_KEYS[name]: value for name, value in given.items() if name != SWITCH}
    document = json.dumps({"distributed_type": "FSDP", "fsdp_config": block})
    try:
        done = convert_text(document, framework="accelerate", is_json=True, settings=settings)
    except ConfigError as error:
        return f"They cannot be converted: {error}"
    refused = next((f for f in done.findings if f.fidelity == "refused"), None)
    if refused is not None:
        return f"They cannot be converted: {refused.subject.removeprefix('fsdp_config.')}: {refused.message}"
    after = json.loads(done.text)
    new = {_NAMES[key]: value for key, value in after["fsdp_config"].items() if key in _NAMES}
    shown = {SWITCH: given[SWITCH], **new}
    become = " ".join(
        f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in shown.items()
    )
    gone = sorted(set(given) - set(shown))
    return f"For FSDP2 set `{become}`{f', and not {named(gone, 8)}' if gone else ''}."
