"""FSDP1 as trainers of other packages are told of it: Accelerate, Hugging Face's Trainer, Composer."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.nodes import dotted
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.text import Source


NAME = "trainers"
CODES = ("FM320", "FM327", "FM328")

_PLUGIN = re.compile(r"^accelerate\..*\bFullyShardedDataParallelPlugin$")
_ACCELERATE = (
    "give it fsdp_version=2 and reshard_after_forward for the strategy; what FSDP2 has no use for goes away: "
    "`fsdp-migrate config` shows the settings."
)
_HF = "Hugging Face's Trainer takes FSDP2 by fsdp_config={'version': 2, ...}: see `fsdp-migrate config`."
_COMPOSER = (
    "Composer: add fsdp_migrate.adapters.composer_callback's callback to the Trainer, or give it an "
    "fsdp2_config under parallelism_config."
)


def find(source: Source) -> Iterator[Found]:
    """Find the plugin, and the arguments that ask for FSDP1."""
    for node in (*source.loads, *source.attributes):
        if any(_PLUGIN.match(name) for name in source.index.qualified(node)):
            yield Found("FM320", node, _ACCELERATE, "commented")
    for call in source.calls:
        yield from _of_call(source, call)


def _of_call(source: Source, call: cst.Call) -> Iterator[Found]:
    known = sorted(source.index.qualified(call.func)) or [dotted(call.func) or ""]
    name = known[0].split(".")[-1]
    given = {arg.keyword.value: arg for arg in call.args if arg.keyword is not None}
    if name.endswith("TrainingArguments") or (name.endswith("Config") and "output_dir" in given):
        if "fsdp" in given and not _is_nothing(given["fsdp"].value):
            yield Found("FM327", given["fsdp"], _HF, "commented")
    elif name == "Trainer" and _imports(source, "composer"):
        for key in ("fsdp_config", "parallelism_config"):
            if key in given and not _is_nothing(given[key].value):
                yield Found("FM328", given[key], _COMPOSER, "commented")


def _is_nothing(node: cst.BaseExpression) -> bool:
    empty = isinstance(node, (cst.List, cst.Tuple)) and not node.elements
    if isinstance(node, cst.SimpleString):
        return not node.evaluated_value
    return empty or (isinstance(node, cst.Name) and node.value in {"None", "False"})


def _imports(source: Source, package: str) -> bool:
    bindings = (b for every in source.index.scope.bindings.values() for b in every)
    return any(b.qualified is not None and b.qualified.split(".")[0] == package for b in bindings)
