"""What sources read of Accelerate's plugin, which FSDP2 has otherwise: ``plugin.sharding_strategy`` is None.

https://github.com/huggingface/accelerate/blob/main/src/accelerate/utils/dataclasses.py
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.heirs import values_of
from fsdp_migrate.source.python.nodes import dotted, text_of
from fsdp_migrate.source.python.shown_alone import is_shown_alone
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "plugin-settings"
CODES = ("FM343",)

_NONE = (
    "Accelerate's FSDP2 sets this to None, whatever was asked for, so that a question decides otherwise: {}."
)
_SETTINGS = {
    "backward_prefetch": "FSDP2 always prefetches",
    "forward_prefetch": "FSDP2 has set_modules_to_forward_prefetch",
    "sharding_strategy": (
        "ask `reshard_after_forward`, true for FULL_SHARD and false for SHARD_GRAD_OP, or the mesh for "
        "hybrid ones"
    ),
    "sync_module_states": "ask `cpu_ram_efficient_loading`, with which rank 0's weights are sent to all",
    "use_orig_params": "FSDP2 always shows the model's own parameters, as with true",
}
_OF_NONE = frozenset(_NONE.format(each) for each in _SETTINGS.values())
_NO_SWITCH = (
    "Accelerate's FSDP2 has a policy of torch's here, without `offload_params`, which raises: ask "
    "isinstance(plugin.cpu_offload, CPUOffloadPolicy) of torch.distributed.fsdp."
)
_NO_DTYPE = (
    "Accelerate's FSDP2 has torch's MixedPrecisionPolicy here, without this attribute, which raises: it has "
    "param_dtype, reduce_dtype, output_dtype and cast_forward_inputs."
)
_MISSING = {
    ("cpu_offload", "offload_params"): _NO_SWITCH,
    ("mixed_precision_policy", "buffer_dtype"): _NO_DTYPE,
    ("mixed_precision_policy", "cast_root_forward_inputs"): _NO_DTYPE,
    ("mixed_precision_policy", "keep_low_precision_grads"): _NO_DTYPE,
}
_GIVEN_ON = {
    "cpu_offload": (
        "Accelerate's FSDP2 has a policy of torch's FSDP2 here, which FSDP1's argument does not take: give "
        "CPUOffload(offload_params=isinstance({0}, CPUOffloadPolicy)), both of torch.distributed.fsdp."
    ),
    "mixed_precision_policy": (
        "Accelerate's FSDP2 has torch's MixedPrecisionPolicy here, which FSDP1's argument does not take: "
        "give MixedPrecision(param_dtype={0}.param_dtype, reduce_dtype={0}.reduce_dtype) of "
        "torch.distributed.fsdp, or None where it is None."
    ),
}
_ARGUMENTS = frozenset({"cpu_offload", "mixed_precision"})
_LOCAL = "Accelerate's FSDP2 has no LOCAL_STATE_DICT, and raises: take SHARDED_STATE_DICT."
_PLUGIN = re.compile(r"(?:^|\.)fsdp_plugin$|^getattr\(.*,['\"]fsdp_plugin['\"](?:,None)?\)$")
_MADE = re.compile(r"^accelerate\b.*\bFullyShardedDataParallelPlugin$")
# Other packages, and projects, have plugins of this name.
_MAY_BE_ITS = re.compile(r"\baccelerat(?:e|or)\b|\b(?:transformers|trl)\b")
_VERSION = re.compile(r"fsdp_version|is_fsdp2")


def find(source: Source) -> Iterator[Found]:
    """Find what is read of a plugin; what is given to one, or set on it, is another rule's."""
    if "fsdp_plugin" not in source.code and "DataParallelPlugin" not in source.code:
        return
    if not _MAY_BE_ITS.search(source.code) or _asks_version(source):
        return
    for node in source.index.by_kind.get(cst.Attribute, ()):
        read = cst.ensure_type(node, cst.Attribute)
        said = _said_of(source, read)
        if said in _OF_NONE and is_shown_alone(source, read):
            continue  # it shows None then, and nothing is decided
        if said is not None and not isinstance(source.index.parents[read], cst.AssignTarget):
            yield Found("FM343", read, said, "commented")
    for call in source.calls:
        yield from _of_call(source, call)


def _asks_version(source: Source) -> bool:
    """Tell whether a source asks which version runs, or whether a setting is None, and so knows of both.

    A comment, or a text for people, that names the version asks nothing, and neither does ``fsdp_version=1``.
    """
    if _VERSION.search(source.code) is not None:
        for node in source.index.by_kind.get(cst.Name, ()):
            above = source.index.parents[node]
            is_one = isinstance(above, cst.Arg) and above.keyword is node and text_of(above.value) == "1"
            if _VERSION.search(text_of(node)) is not None and not is_one:
                return True
        strings = source.index.by_kind.get(cst.SimpleString, ())
        texts = (cst.ensure_type(node, cst.SimpleString).value for node in strings)
        if any(_VERSION.search(text) is not None and not re.search(r"\s", text) for text in texts):
            return True
    return any(_is_asked_for_none(source, node) for node in source.index.by_kind.get(cst.Comparison, ()))


def _is_asked_for_none(source: Source, node: cst.CSTNode) -> bool:
    test = cst.ensure_type(node, cst.Comparison)
    first = test.comparisons[0]
    is_none = isinstance(first.operator, (cst.Is, cst.IsNot)) and text_of(first.comparator) == "None"
    return is_none and isinstance(test.left, cst.Attribute) and _is_plugin(source, test.left.value)


def _said_of(source: Source, read: cst.Attribute) -> str | None:
    name, owner = read.attr.value, read.value
    if name in _SETTINGS:
        return _NONE.format(_SETTINGS[name]) if _is_plugin(source, owner) else None
    if name in _GIVEN_ON and _is_fsdp1s_argument(source, read):
        return _GIVEN_ON[name].format(text_of(read)) if _is_plugin(source, owner) else None
    said = _MISSING.get((owner.attr.value, name)) if isinstance(owner, cst.Attribute) else None
    return said if isinstance(owner, cst.Attribute) and _is_plugin(source, owner.value) else None


def _is_fsdp1s_argument(source: Source, value: cst.Attribute) -> bool:
    """Tell whether a value is given on by the name of FSDP1's argument, in a call or in a dict."""
    above = source.index.parents[value]
    if isinstance(above, cst.Arg):
        return above.keyword is not None and above.keyword.value in _ARGUMENTS
    key = above.key if isinstance(above, cst.DictElement) and above.value is value else None
    return isinstance(key, cst.SimpleString) and key.evaluated_value in _ARGUMENTS


def _of_call(source: Source, call: cst.Call) -> Iterator[Found]:
    """Find ``getattr(plugin, "sharding_strategy", None)``, and ``plugin.set_state_dict_type("LOCAL...")``."""
    texts = [str(a.value.evaluated_value) for a in call.args if isinstance(a.value, cst.SimpleString)]
    func = call.func
    asked = texts[0] if dotted(func) == "getattr" and texts else ""
    is_asked = asked in _SETTINGS and not is_shown_alone(source, call)
    if is_asked and _is_plugin(source, call.args[0].value):
        yield Found("FM343", call, _NONE.format(_SETTINGS[asked]), "commented")
    is_set = isinstance(func, cst.Attribute) and func.attr.value == "set_state_dict_type"
    is_local = is_set and any(text.upper() == "LOCAL_STATE_DICT" for text in texts)
    if is_local and isinstance(func, cst.Attribute) and _is_plugin(source, func.value):
        yield Found("FM343", call, _LOCAL, "commented")


def _is_plugin(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether it is Accelerate's plugin: ``accelerator.state.fsdp_plugin``, by a name of it too."""
    if _PLUGIN.search(text_of(node)) is not None:
        return True
    for value in values_of(source.index, node):
        if _PLUGIN.search(text_of(value)) is not None:
            return True
        if isinstance(value, cst.Call) and any(map(_MADE.match, source.index.qualified(value.func))):
            return True
    return False
