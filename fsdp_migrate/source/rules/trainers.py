"""FSDP1 as trainers of other packages are told of it: Accelerate, Hugging Face's Trainer, Composer."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.nodes import dotted
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "trainers"
CODES = ("FM320", "FM327", "FM328")

_PLUGIN = re.compile(r"^accelerate\..*\bFullyShardedDataParallelPlugin$")
_ACCELERATE = (
    "give it fsdp_version=2 and reshard_after_forward=True (False for SHARD_GRAD_OP) in place of "
    "sharding_strategy; use_orig_params, sync_module_states and the prefetches go away."
)
_CLASS_ITSELF = "stays: the same class holds the settings of FSDP2"
_ALREADY = "stays: it asks for FSDP2 already"
_HF = (
    "Hugging Face's Trainer takes FSDP2 by fsdp_config={'version': 2, 'reshard_after_forward': True, ...} "
    "(False for shard_grad_op); a file that fsdp_config names is converted by "
    "`fsdp-migrate config FILE --from hf`."
)
_COMPOSER = (
    "Composer: add fsdp_migrate.adapters.composer_callback's callback to the Trainer, or give it an "
    "fsdp2_config under parallelism_config."
)


def find(source: Source) -> Iterator[Found]:
    """Find the plugin, and the arguments that ask for FSDP1."""
    for node in (*source.loads, *source.attributes):
        if any(_PLUGIN.match(name) for name in source.index.qualified(node)):
            yield _of_plugin(source, node)
    for call in source.calls:
        yield from _of_call(source, call)


def _of_plugin(source: Source, node: cst.BaseExpression) -> Found:
    """Return what Accelerate's plugin is here: settings of FSDP1, of FSDP2, or only asked about."""
    above = source.index.parents[node]
    if isinstance(above, cst.Attribute) or any(
        isinstance(a, cst.Annotation) for a in source.index.ancestors(node)
    ):
        return Found("FM320", node, _CLASS_ITSELF, "kept")
    if isinstance(above, cst.Call) and above.func is node:
        is_fsdp2 = any(
            arg.keyword and arg.keyword.value == "fsdp_version" and _is_two(arg.value) for arg in above.args
        )
        return (
            Found("FM320", node, _ALREADY, "kept")
            if is_fsdp2
            else Found("FM320", node, _ACCELERATE, "commented")
        )
    for outer in source.index.ancestors(node):
        if isinstance(outer, cst.Call):
            if dotted(outer.func) in {"hasattr", "isinstance", "issubclass"}:
                return Found("FM320", node, _CLASS_ITSELF, "kept")
            break
    return Found("FM320", node, _ACCELERATE, "commented")


def _is_two(node: cst.BaseExpression) -> bool:
    return isinstance(node, (cst.Integer, cst.SimpleString)) and str(node.evaluated_value) == "2"


def _asks_for_fsdp2(node: cst.BaseExpression) -> bool:
    """Tell whether ``fsdp_config`` is ``{"version": 2, ...}``, as far as it stands there."""
    for element in node.elements if isinstance(node, cst.Dict) else ():
        key = element.key if isinstance(element, cst.DictElement) else None
        if isinstance(key, cst.SimpleString) and key.evaluated_value in {"version", "fsdp_version"}:
            return _is_two(element.value)
    return False


def _of_call(source: Source, call: cst.Call) -> Iterator[Found]:
    known = sorted(source.index.qualified(call.func)) or [dotted(call.func) or ""]
    name = known[0].split(".")[-1]
    given = {arg.keyword.value: arg for arg in call.args if arg.keyword is not None}
    if name.endswith("TrainingArguments") or (name.endswith("Config") and "output_dir" in given):
        if "fsdp" in given and not _is_nothing(given["fsdp"].value):
            config = given.get("fsdp_config")
            if config is not None and _asks_for_fsdp2(config.value):
                yield Found("FM327", given["fsdp"], _ALREADY, "kept")
            else:
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
