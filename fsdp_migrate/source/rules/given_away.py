"""Lists and dicts of a sharded model's parameters, given to what takes plain tensors: they hold DTensors.

A plain model's ``load_state_dict`` raises; a file, or another process, has one rank's part of each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.parameter_values import ParameterValues
from fsdp_migrate.source.python.no_models import is_no_model
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "given-away"
CODES = ("FM423",)

_MEANT = (
    "what this is given are DTensors now, of which each rank holds a part, and {}. Where they are collected, "
    "on every rank, take .full_tensor() of each; or in their place torch's get_model_state_dict(model, "
    "options=StateDictOptions(full_state_dict=True, cpu_offload=True))."
)
_PLAIN_MODEL = "a plain model loads plain tensors"
_FILE = "a file of them holds one rank's part"
_PROCESS = "another process, or rank, needs plain tensors"
_SAVES = {
    "pickle.dump": 0,
    "pickle.dumps": 0,
    "ray.put": 0,
    "safetensors.torch.save": 0,
    "safetensors.torch.save_file": 0,
    "torch.save": 0,
    "torch.distributed.all_gather_object": 1,
    "torch.distributed.broadcast_object_list": 0,
    "torch.distributed.gather_object": 0,
    "torch.distributed.send_object_list": 0,
}
_SENDS = frozenset({"put", "put_nowait", "send"})


def find(source: Source) -> Iterator[Found]:
    """Find calls that are given them."""
    values = ParameterValues(source)
    for call in source.calls:
        said = "" if source.contexts.is_summoned(call) else _said(values, call)
        if said:
            yield Found("FM423", call, _MEANT.format(said), "commented")
    for assign in source.assignments:
        if any(_is_saved(source, each.target) for each in assign.targets) and _holds(values, assign.value):
            yield Found("FM423", assign, _MEANT.format(_FILE), "commented")


def _is_saved(source: Source, target: cst.BaseExpression) -> bool:
    """Tell whether Lightning saves what is set: ``checkpoint["ema"] = shadow`` in ``on_save_checkpoint``."""
    if not isinstance(target, cst.Subscript) or not isinstance(target.value, cst.Name):
        return False
    function = source.index.function(target)
    if function is None or function.name.value != "on_save_checkpoint":
        return False
    last = function.params.params[-1:]
    return any(each.name.value == target.value.value for each in last)


def _said(values: ParameterValues, call: cst.Call) -> str:
    source = values.source
    placed = [arg.value for arg in call.args if not arg.star]
    known = source.index.qualified(call.func)
    name = next((each for each in known if each in _SAVES), None)
    if name is not None and _SAVES[name] < len(placed) and _holds(values, placed[_SAVES[name]]):
        return _PROCESS if name.startswith(("ray.", "torch.distributed.")) else _FILE
    func = call.func
    if not isinstance(func, cst.Attribute) or known or not placed:
        return ""
    if func.attr.value in _SENDS:
        return _PROCESS if len(placed) == 1 and _holds(values, placed[0]) else ""
    if func.attr.value != "load_state_dict" or is_no_model(source.index, func.value):
        return ""
    # What becomes of a sharded model's own is said with it.
    is_sharded = source.models.certainty(func.value) is not None or source.models.is_guarded(func.value)
    return _PLAIN_MODEL if not is_sharded and values.is_many(placed[0]) else ""


def _holds(values: ParameterValues, node: cst.BaseExpression) -> bool:
    """Tell whether it holds parameters, or holds what does: ``{"ema": shadow, "step": step}``."""
    if isinstance(node, (cst.List, cst.Tuple, cst.Dict)):
        return any(values.is_one(each.value) or values.is_many(each.value) for each in node.elements)
    return values.is_one(node) or values.is_many(node)
