"""What a source sets on the plugin of an Accelerator that is made already, which FSDP2 takes otherwise."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.contexts import names_in
from fsdp_migrate.source.python.environment import environment_of_run
from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.nodes import (
    dotted,
    given_by_name,
    last_name,
    named_arguments,
    text_of,
    word_of,
)
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


PLUGIN = re.compile(r"^accelerate\..*\bFullyShardedDataParallelPlugin$")
"""What the plugin's class is called by imports."""
_POLICY_IS_SET = (
    "with this policy Accelerate's FSDP2 shards the whole model as one unit: it knows policies by class and "
    "by size alone. Take this out: in FSDP2's units frozen and trained parameters mix, and adapters (PEFT) "
    "need no policy of their own."
)
_POLICY_IS_UNSEEN = (
    "what this holds is not seen here. Where it is what the plugin had before, by class or by size, leave "
    "it. With any other policy Accelerate's FSDP2 shards the whole model as one unit: take this out then; "
    "adapters (PEFT) need no policy of their own."
)
_NO_OTHER_POLICY = (
    "Where neither the plugin nor a config of its launch names another, it shards so without it, too: give "
    "the plugin auto_wrap_policy='transformer_based_wrap' and transformer_cls_names_to_wrap=[<layer>]."
)
_POLICY = "auto_wrap_policy"
_SET_POLICY = re.compile(r"\bfsdp_plugin\.auto_wrap_policy$")
_CASTS_ARE_SET = (
    "Accelerate's FSDP2 gives this to fully_shard, which takes another class and does not cast inputs by "
    "this one: set a MixedPrecisionPolicy(param_dtype, reduce_dtype) of torch.distributed.fsdp; it has no "
    "buffer_dtype."
)
_SET_IGNORED = re.compile(r"plugin\.ignored_modules$")
_LOADING = re.compile(r"(?:^|_)cpu_ram_efficient_loading$", re.IGNORECASE)
_SET_CASTS = re.compile(r"plugin\.mixed_precision_policy$")
_SET_STRATEGY = re.compile(r"plugin\.sharding_strategy$")
_STRATEGY_IS_SET = (
    "FSDP2 reads no sharding_strategy of the plugin: set {}.reshard_after_forward = {} where it is made, or "
    "here."
)
_RESHARDS = {
    "FULL_SHARD": "True",
    "HYBRID_SHARD": "True (and a mesh by Accelerator(parallelism_config=...))",
    "NO_SHARD": "False (each rank keeps shards alone between steps)",
    "SHARD_GRAD_OP": "False",
    "_HYBRID_SHARD_ZERO2": "False (and a mesh by Accelerator(parallelism_config=...))",
}
_ANY_STRATEGY = "True for FULL_SHARD and HYBRID_SHARD, False for SHARD_GRAD_OP and NO_SHARD"
IGNORED = (
    (
        "with `cpu_ram_efficient_loading`, which `accelerate launch` turns on where nothing is said, "
        "Accelerate's FSDP2 shards the ignored modules all the same, with the values of rank 0 on every rank."
    ),
    "Give cpu_ram_efficient_loading=False.",
)
"""What is said of modules that the plugin ignores, and what to do."""


def find(source: Source) -> Iterator[Found]:
    """Find attributes that are set on a plugin: its policy, modules, strategy and casts."""
    for assign in source.assignments:
        for target in assign.targets:
            name, value = dotted(target.target) or "", assign.value
            if _SET_POLICY.search(name) and text_of(value) != "None":
                said = _POLICY_IS_UNSEEN if _is_kept_somewhere(source, value) else _POLICY_IS_SET
                others = "" if _names_policy(source) else f" {_NO_OTHER_POLICY}"
                yield Found("FM343", assign, f"{said}{others}", "commented")
            elif _SET_IGNORED.search(name) and text_of(value) != "None" and _may_load_so(source):
                yield Found("FM343", assign, " ".join(IGNORED), "commented")
            elif _SET_CASTS.search(name) and is_of_fsdp1(source, value):
                yield Found("FM343", assign, _CASTS_ARE_SET, "commented")
            elif _SET_STRATEGY.search(name) and text_of(value) != "None":
                said = _STRATEGY_IS_SET.format(name.rpartition(".")[0], _reshards(value))
                yield Found("FM320", assign, said, "commented", covers=tuple(names_in(value)))


def _is_kept_somewhere(source: Source, value: cst.BaseExpression) -> bool:
    """Tell whether a value is what an object holds, as a plugin's own policy that is put back."""
    if isinstance(value, cst.Name) and value in source.index.scopes:
        value = last_value(source.index, value) or value
    asks = isinstance(value, cst.Call) and dotted(value.func) == "getattr"
    return asks or (isinstance(value, cst.Attribute) and not source.index.qualified(value))


def _names_policy(source: Source) -> bool:
    """Tell whether the source gives a plugin a policy where it is made, or by the environment."""
    made = (c for c in source.calls if any(map(PLUGIN.match, source.index.qualified(c.func))))
    given = {name: text_of(value) for call in made for name, value in named_arguments(call).items()}
    return given.get(_POLICY, "None") != "None" or "FSDP_AUTO_WRAP_POLICY" in environment_of_run(source)


def is_its_strategy(source: Source, node: cst.CSTNode) -> bool:
    """Tell whether a word of FSDP1's is what the strategy of a plugin is set to."""
    above = source.index.parents[node]
    return isinstance(above, cst.Assign) and any(
        _SET_STRATEGY.search(dotted(each.target) or "") for each in above.targets
    )


def _reshards(value: cst.BaseExpression) -> str:
    return _RESHARDS.get(text_of(value).split(".")[-1].strip("'\""), _ANY_STRATEGY)


def _may_load_so(source: Source) -> bool:
    """Tell whether rank 0 may load for all by the source's own plugin; of configs a step says it."""
    made = (PLUGIN.match(name) for call in source.calls for name in source.index.qualified(call.func))
    if not any(made) or any(_has(call, "fsdp_version", "2") for call in source.calls):
        return False
    return not any(map(_is_false, _loading_values(source)))


def _has(call: cst.Call, name: str, value: str) -> bool:
    return any(text_of(each) == value for each in given_by_name(call, name))


def _loading_values(source: Source) -> Iterator[cst.BaseExpression]:
    """Yield what the source sets ``cpu_ram_efficient_loading`` to: in a call, a dict, an item and so on."""
    for call in source.calls:
        yield from (value for name, value in named_arguments(call).items() if _LOADING.search(name))
    for node in source.index.by_kind.get(cst.DictElement, ()):
        if isinstance(node, cst.DictElement) and _LOADING.search(_word(node.key)):
            yield node.value
    for assign in source.assignments:
        if any(_LOADING.search(_word(each.target)) for each in assign.targets):
            yield assign.value


def _word(node: cst.BaseExpression) -> str:
    """Return the last word of a target or a key: that of ``os.environ["FSDP_X"]`` too."""
    if isinstance(node, cst.Subscript):
        key = node.slice[0].slice if len(node.slice) == 1 else None
        return _word(key.value) if isinstance(key, cst.Index) else ""
    if isinstance(node, cst.SimpleString):
        return str(node.evaluated_value)
    return last_name(node)


def _is_false(value: cst.BaseExpression) -> bool:
    return word_of(value).lower() in {"false", "0"}


def is_of_fsdp1(source: Source, value: cst.BaseExpression) -> bool:
    """Tell whether a value is FSDP1's own ``MixedPrecision(...)``, here or by its name."""
    made = last_value(source.index, value) if isinstance(value, cst.Name) else value
    return isinstance(made, cst.Call) and source.index.fsdp1(made.func) == "MixedPrecision"


def is_changed_later(source: Source, call: cst.Call) -> bool:
    """Tell whether attributes of the plugin are set after it was made."""
    assign = next((a for a in source.index.ancestors(call) if isinstance(a, cst.Assign)), None)
    names = {text_of(target.target) for target in assign.targets} if assign is not None else set()
    home = source.index.function(call)
    return any(
        isinstance(target.target, cst.Attribute)
        and text_of(target.target.value) in names
        and (home is None or "." in text_of(target.target.value) or source.index.function(each) is home)
        and (home is not None or _is_global(source, target.target.value))
        for each in source.assignments
        for target in each.targets
    )


def _is_global(source: Source, node: cst.BaseExpression) -> bool:
    if not isinstance(node, cst.Name):
        return True
    return source.index.scopes[node].find(node.value) is source.index.scope
