"""FSDP settings that a script gives to Accelerate as variables of the environment."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from fsdp_migrate.adapters.accelerate import ACCELERATE_KEYS
from fsdp_migrate.adapters.conversion.assigned import with_assignment
from fsdp_migrate.adapters.conversion.text import BlockReport, convert_text
from fsdp_migrate.adapters.conversion.variables import without_comments
from fsdp_migrate.adapters.engine.accelerate_switch import SWITCH, may_switch_on
from fsdp_migrate.adapters.engine.base import by_name
from fsdp_migrate.adapters.engine.claims import ACCELERATE
from fsdp_migrate.adapters.engine.rank0_loading import LOADED_BY_RANK_0
from fsdp_migrate.errors import ConfigError
from fsdp_migrate.findings import Finding, make_finding, named


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fsdp_migrate.adapters.engine.settings import Settings


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
_SAME = frozenset({SWITCH, _LOADING, "FSDP_OFFLOAD_PARAMS"})
_SAID = frozenset({"FM343", "FM353", "FM355"})
"""Of a variable's value that FSDP2 takes otherwise, or not at all."""
_MESH = (
    "For several nodes set `ACCELERATE_USE_PARALLELISM_CONFIG=true "
    "PARALLELISM_CONFIG_DP_REPLICATE_SIZE=<nodes> PARALLELISM_CONFIG_DP_SHARD_SIZE=<ranks of a node>` too."
)
_NO_RESHARD = (
    "Where it says SHARD_GRAD_OP or NO_SHARD (2 or 3) set `FSDP_RESHARD_AFTER_FORWARD=false`: without it "
    f"each unit is freed after forward. Where it says HYBRID_SHARD: {_MESH[0].lower()}{_MESH[1:]}"
)
_UNREAD = {
    "FSDP_SHARDING_STRATEGY": _NO_RESHARD,
    "FSDP_BACKWARD_PREFETCH": None,
    "FSDP_FORWARD_PREFETCH": None,
}
"""What Accelerate's FSDP2 does not read, so that a variable in it cannot stay, with what to set instead."""
_OF_TRAINER = (
    "FSDP_FORWARD_PREFETCH",
    "FSDP_BACKWARD_PREFETCH",
    "FSDP_USE_ORIG_PARAMS",
    "FSDP_SYNC_MODULE_STATES",
    "FSDP_CPU_RAM_EFFICIENT_LOADING",
)
"""What HF Trainer gives Accelerate from `fsdp_config`: 4.x overwrites them, 5.x hands them to the plugin."""
_OVERWRITTEN = (
    f" {_LOADING} HF Trainer sets itself, to what `fsdp_config` says of `cpu_ram_efficient_loading`, false "
    "where that is not there."
)
_OFF = frozenset({"", "0", "false", "no", "off"})


def told_by_environment(
    text: str, settings: Settings | None = None, *, beside_hf: bool = False
) -> tuple[tuple[BlockReport, ...], tuple[Finding, ...]]:
    """Return what a script tells Accelerate by variables, and what it has to tell for FSDP2.

    They count only beside ``ACCELERATE_USE_FSDP``, without which Accelerate does not read them.
    ``beside_hf``: HF Trainer's own arguments ask for FSDP there too, and set some of them anew.

    Example:
        >>> told_by_environment("ACCELERATE_USE_FSDP=true python t.py")[0][0].state
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
    subject = f"{place}: {SWITCH}"
    if not may_switch_on(given[SWITCH]):
        message = (
            f"{given[SWITCH]}: Accelerate takes `true` alone for on, and reads no FSDP settings of the "
            "environment: left as it is."
        )
        return (BlockReport("accelerate", place, "unused"),), (make_finding("FM351", subject, message),)
    listed = named(sorted(given), 8)
    if given.get("FSDP_VERSION") == "2":
        message = f"{listed} in the environment: it is FSDP2 of Accelerate already."
        return (BlockReport("accelerate", place, "fsdp2"),), (make_finding("FM347", subject, message),)
    message = f"Accelerate reads FSDP settings from the environment: {listed}. Left as they are."
    kept = {name: value for name, value in given.items() if not (beside_hf and name == _LOADING)}
    hint, said = _become(kept, settings)
    loading = _OVERWRITTEN if beside_hf and _LOADING in given else _of_loading(given)
    finding = make_finding("FM355", subject, message, hint + loading)
    said = [
        with_assignment(replace(each, subject=f"{place}: {each.subject}"), bare, settings) for each in said
    ]
    casts = told_of_precision(every.get(_PRECISION, "no"), f"{place}: {_PRECISION}")
    return (BlockReport("accelerate", place, "unchanged"),), (finding, *said, *casts)


def of_framework(said: Sequence[Finding], blocks: Sequence[BlockReport]) -> list[Finding]:
    """Return what is said of the variables without those that HF Trainer sets itself, where it runs alone."""
    if not blocks or any(block.framework != "hf" for block in blocks):
        return list(said)
    return [each for each in said if each.code == "FM355" or not each.subject.endswith(_OF_TRAINER)]


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


def _become(given: dict[str, str], settings: Settings | None) -> tuple[str, list[Finding]]:
    """Return what to set for FSDP2, and what it takes otherwise of what is given."""
    if set(given) <= _SAME:
        hint = (
            "They mean the same under FSDP2. HF Trainer's `fsdp_config` or a config file says which of the "
            "two runs; where nothing else does, set `FSDP_VERSION=2` too, and "
            "`FSDP_STATE_DICT_TYPE=FULL_STATE_DICT`, which only FSDP1 takes by itself."
        )
        return hint, []
    block = {_KEYS[name]: value for name, value in given.items() if name != SWITCH}
    # The launcher takes true where nothing is said, the plugin that reads the environment alone takes false.
    loading = {_KEYS[_LOADING]: "false"}
    document = json.dumps({"distributed_type": "FSDP", "fsdp_config": {**loading, **block}})
    try:
        done = convert_text(document, framework="accelerate", is_json=True, settings=settings)
    except ConfigError as error:
        return f"They cannot be converted: {error}", []
    refused = next((f for f in done.findings if f.fidelity == "refused"), None)
    if refused is not None:
        where = refused.subject.removeprefix("fsdp_config.")
        return f"They cannot be converted: {where}: {refused.message}", []
    after = json.loads(done.text)
    named_now = {_NAMES[key]: value for key, value in after["fsdp_config"].items() if key in _NAMES}
    new = {name: value for name, value in named_now.items() if name not in _UNREAD}
    mesh = {name.upper(): size for name, size in after.get("parallelism_config", {}).items()}
    use = {"ACCELERATE_USE_PARALLELISM_CONFIG": "true"} if mesh else {}
    shown = {SWITCH: given[SWITCH], **new, **use, **mesh}
    become = " ".join(
        f"{name}={str(value).lower() if isinstance(value, bool) else value}"
        for name, value in shown.items()
        if name != _LOADING or name in given
    )
    gone = sorted(set(given) - set(shown))
    hint = f"For FSDP2 set `{become}`{f', and not {named(gone, 8)}' if gone else ''}."
    return hint, list(_otherwise(given, done.findings))


def _otherwise(given: dict[str, str], findings: tuple[Finding, ...]) -> Iterator[Finding]:
    """Yield what is said of the variables that are given, by their names."""
    names = {key: name for name, key in _KEYS.items() if name in given}
    for each in findings:
        key = each.subject.removeprefix("fsdp_config.")
        if each.code == "FM346" and names.get(key) in _UNREAD:
            message = f"{given[names[key]]} is not set in this file: kept, but FSDP2 does not read it."
            yield replace(each, subject=names[key], message=message, hint=_UNREAD[names[key]])
        if each.code in _SAID and key in names:
            hint = _MESH if each.code == "FM355" else each.hint
            yield replace(each, subject=names[key], hint=hint)
