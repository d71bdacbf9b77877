"""What is saved or sent of a sharded model: itself, and its parameters in lists and dicts: DTensors.

A plain model's ``load_state_dict`` raises at these; a file, or another process, has one rank's part of each.
A model that FSDP2 has sharded, and any part of it, cannot be pickled at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.copied_parameters import holds_one, is_part
from fsdp_migrate.source.kept_averages import is_average
from fsdp_migrate.source.parameter_values import ParameterValues
from fsdp_migrate.source.python.held import has_model, held
from fsdp_migrate.source.python.no_models import is_no_model
from fsdp_migrate.source.python.nodes import argument_of, placed_parameters
from fsdp_migrate.source.rules.rank_files import is_of_a_rank
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "given-away"
CODES = ("FM323", "FM423")

_MEANT = (
    "what this is given are DTensors now, of which each rank holds a part, and {}. Where they are collected, "
    "on every rank, take .full_tensor() of each. Of the model's parameters themselves, not of averages, "
    "copies or gradients, torch's get_model_state_dict(model, "
    "options=StateDictOptions(full_state_dict=True, cpu_offload=True)) gives all."
)
_OF_RANKS = (
    "stays: each rank saves its part in a file of its own, as DTensors, and as many ranks load it back"
)
_READ_ELSEWHERE = (
    "each rank saves its part in a file of its own, as DTensors now, which torch.load reads on as many "
    "ranks, once the process group is made: there nothing is to be done. For what reads these files "
    "otherwise take v.to_local() of each, this rank's rows, or .full_tensor(), on every rank, the whole."
)
_PLAIN_MODEL = "a plain model loads plain tensors"
_FILE = "a file of them holds one rank's part"
_SAFE = "safetensors refuses them"
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
_PICKLED = (
    "neither a model that FSDP2 has sharded nor a part of it can be pickled, in summon_full_params either, "
    "and this does so: save fsdp_migrate.runtime.full_state_dict(model), which every rank takes, and where "
    "it is read make the model first, and load that into it."
)
# What pickles whole objects: where the object stands, and its name there.
_PICKLES = {
    **dict.fromkeys(
        (
            *("accelerate.utils.save", "torch.save"),
            *(f"{each}.{name}" for each in ("cloudpickle", "dill", "pickle") for name in ("dump", "dumps")),
        ),
        (0, "obj"),
    ),
    "joblib.dump": (0, "value"),
    "ray.put": (0, "value"),
    "torch.distributed.all_gather_object": (1, "obj"),
    "torch.distributed.broadcast_object_list": (0, "object_list"),
    "torch.distributed.gather_object": (0, "obj"),
    "torch.distributed.send_object_list": (0, "object_list"),
}
_SENDS = frozenset({"put", "put_nowait", "send"})


def find(source: Source) -> Iterator[Found]:
    """Find calls that are given them."""
    values = ParameterValues(source)
    for call in source.calls:
        if any(_has_a_model(source, each) for each in _pickled_by(source, call)):
            yield Found("FM323", call, _PICKLED, "commented")
            continue
        said = "" if source.contexts.is_summoned(call) else _said(values, call)
        if said:
            yield _by_each_rank(source, call) or Found("FM423", call, _MEANT.format(said), "commented")
    for assign in source.assignments:
        if not any(_is_saved(source, each.target) for each in assign.targets):
            continue
        if _has_a_model(source, assign.value):
            yield Found("FM323", assign, _PICKLED, "commented")
        elif _holds(values, assign.value):
            yield Found("FM423", assign, _MEANT.format(_FILE), "commented")


def _by_each_rank(source: Source, call: cst.Call) -> Found | None:
    """Return what is said of a file that each rank saves of its own part, if it is one."""
    path = argument_of(call, 1, {"f"}) if "torch.save" in source.index.qualified(call.func) else None
    if path is None or not is_of_a_rank(source, path):
        return None
    loads = (each for each in source.calls if "torch.load" in source.index.qualified(each.func))
    files = (argument_of(each, 0, {"f"}) for each in loads)
    if any(file is not None and is_of_a_rank(source, file) for file in files):
        return Found("FM423", call, _OF_RANKS, "kept")
    return Found("FM423", call, _READ_ELSEWHERE, "commented")


def _pickled_by(source: Source, call: cst.Call) -> Iterator[cst.BaseExpression]:
    """Yield the object that a call pickles, if it pickles one."""
    for name in source.index.qualified(call.func) & set(_PICKLES):
        place, keyword = _PICKLES[name]
        given = argument_of(call, place, {keyword})
        if given is not None:
            yield given


def _has_a_model(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether it is or holds a sharded model, or a part: ``{"model": model, "step": step}``."""
    if isinstance(node, (cst.List, cst.Tuple, cst.Dict)):
        return any(_has_a_model(source, each.value) for each in node.elements)
    models = source.models
    if models.is_other_branch(node):
        return False
    if models.certainty(node) is not None or models.is_guarded(node) or is_part(source, node):
        return True
    kinds = {kind for kind in held(models.kinds(node)) if not kind.startswith(".")}
    return has_model(kinds) or holds_one(source, node)


def _is_saved(source: Source, target: cst.BaseExpression) -> bool:
    """Tell whether Lightning saves what is set: ``checkpoint["ema"] = shadow`` in ``on_save_checkpoint``."""
    if not isinstance(target, cst.Subscript) or not isinstance(target.value, cst.Name):
        return False
    function = source.index.function(target)
    if function is None or function.name.value != "on_save_checkpoint":
        return False
    last = placed_parameters(function)[-1:]
    return any(each.name.value == target.value.value for each in last)


def _said(values: ParameterValues, call: cst.Call) -> str:
    source = values.source
    placed = [arg.value for arg in call.args if not arg.star]
    known = source.index.qualified(call.func)
    name = next((each for each in known if each in _SAVES), None)
    if name is not None and _SAVES[name] < len(placed) and _holds(values, placed[_SAVES[name]]):
        if name.startswith("safetensors."):
            return _SAFE
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
        return any(_holds(values, each.value) for each in node.elements)
    func = node.func if isinstance(node, cst.Call) else None
    is_asked = isinstance(func, cst.Attribute) and func.attr.value == "state_dict"
    if is_asked and isinstance(func, cst.Attribute) and is_average(values.source, func.value):
        return True  # the copies that an average keeps
    return values.is_one(node) or values.is_many(node)
