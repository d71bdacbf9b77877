"""Other things done to an FSDP1 model: hooks, ``apply``, ``forward``, copies, checkpointing afterwards."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.asking_functions import is_looked_at_by_function
from fsdp_migrate.source.check_functions import words_of_check
from fsdp_migrate.source.copied_parameters import copies
from fsdp_migrate.source.framework_words import is_in_a_module, is_without_parameters, name_of_framework
from fsdp_migrate.source.initialising import initialises
from fsdp_migrate.source.method_calls import sureness, was_fsdp1s
from fsdp_migrate.source.python.no_shard import chooses_no_shard
from fsdp_migrate.source.python.nodes import dotted, last_name, short, text_of
from fsdp_migrate.source.python.own_parts import holder_of
from fsdp_migrate.source.python.strategies import is_sharded_for_certain
from fsdp_migrate.source.runs_elsewhere import COMPUTES
from fsdp_migrate.source.sharded_parts import whole_of
from fsdp_migrate.source.units_of_parts import own_part, part_of, units_of
from fsdp_migrate.source.uses import Found, Replace


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "model-methods"
CODES = ("FM303", "FM317", "FM321", "FM322", "FM323", "FM324", "FM448")

_RESIZES = (
    "FM322",
    (
        "this makes new embeddings of the old ones' values, which are DTensors in a sharded model, and "
        "raises, also on one rank: do it before the model is sharded. Behind the training, load what "
        "fsdp_migrate.runtime.full_state_dict(model) gathers into a model of its own, and do it there."
    ),
)
_METHODS = {
    "resize_position_embeddings": _RESIZES,
    "resize_token_embeddings": _RESIZES,
    "register_comm_hook": (
        "FM321",
        "FSDP2's hooks take other arguments: set_all_reduce_hook, set_custom_reduce_scatter of each unit.",
    ),
    "apply": (
        "FM322",
        (
            "FSDP1 showed whole parameters to the function, now it sees shards: call it in "
            "fsdp_migrate.runtime.summon_full_params(model)."
        ),
    ),
}
_INITIALISES = (
    "this applies a function to the modules of a sharded model, which sees shards now, where FSDP1 showed it "
    "whole parameters: initialise before the model is sharded, or in "
    "fsdp_migrate.runtime.summon_full_params(model)."
)
_FORWARD = (
    "where this is the sharded model, call it by itself, model(...): FSDP2 gathers in hooks of that call."
)
_HANDED_ON = (
    "where this is the sharded model, take the model itself, which is called in the same way: FSDP2 gathers "
    "in hooks of that call, and its forward alone finds shards."
)
_BY_METHOD = (
    "under NO_SHARD FSDP1 had whole parameters at any time, FSDP2 gathers in model(...) alone: where this "
    "model has that strategy, and this comes before the first model(...) of it, call "
    "fsdp_migrate.runtime.register_forward_methods(model, {!r}) once."
)
_REGISTERS = frozenset({"register_forward_methods", "register_fsdp_forward_method"})
# Those who are given a forward and only look at it.
_LOOKS = frozenset(
    {"callable", "getfullargspec", "hasattr", "id", "isinstance", "print", "signature", "type"}
)
_COPIED = (
    "what this copies are DTensors, or holds them: while these have gradients, torch's copy of them raises. "
    "Take [p.detach().clone() for p in model.parameters()], or clone_parameters(model) of "
    "fsdp_migrate.runtime; of an optimizer its state_dict()."
)
_PART_COPIED = (
    "a part of an FSDP2 model cannot be copied where it is a unit, or has gradients: copy it before the "
    "model is sharded, or take fsdp_migrate.runtime.clone_parameters(model)."
)
_APPLY = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper.apply_activation_checkpointing"
# Functions of other sources that do so, by what they are called.
_CHECKPOINTS = re.compile(r"^(apply|enable|set|wrap)_\w*checkpointing|^apply_(ac|activation_checkpoint)$")
_BY_FRAMEWORK = (
    "checkpoint layers before {} shards the model, which spares a second all-gather: make this call above "
    "the one that gives it the model{}."
)
_BY_SETTING = {
    "accelerate": (
        ", or delete it and give FullyShardedDataParallelPlugin activation_checkpointing=True (in a config "
        "`fsdp_activation_checkpointing: true`)"
    )
}
_TE = "transformer_engine.pytorch.distributed.prepare_te_modules_for_fsdp"
_TRL = "trl.models.prepare_fsdp"
_AVERAGES = (
    "ema_pytorch.EMA",
    "ema_pytorch.ema_pytorch.EMA",
    "torch.optim.swa_utils.AveragedModel",
    *(f"timm.utils.{path}ModelEma{version}" for path in ("", "model_ema.") for version in ("", "V2", "V3")),
)
_AVERAGED = (
    "this copies the model, and an FSDP2 model cannot be copied: take clone_parameters(model) of "
    "fsdp_migrate.runtime, and its ema_update and swapped_parameters."
)
_FUNCTIONS = {
    **dict.fromkeys(_AVERAGES, ("FM323", _AVERAGED)),
    "copy.deepcopy": (
        "FM323",
        (
            "an FSDP2 model cannot be copied: copy it before it is sharded, or take "
            "fsdp_migrate.runtime.clone_parameters(model)."
        ),
    ),
    _TE: (
        "FM317",
        (
            "this takes FSDP1's wrapper alone, to shard what TransformerEngine keeps for the backward pass, "
            "and raises for any other model: leave it out."
        ),
    ),
    **dict.fromkeys(
        (_TRL, "trl.models.utils.prepare_fsdp"),
        (
            "FM303",
            (
                "this makes FSDP1's model: call prepare_fully_shard(model, {...}) instead, with the plugin's "
                "arguments, or take a TRL whose function looks at fsdp_version."
            ),
        ),
    ),
    _APPLY: (
        "FM324",
        (
            "checkpoint layers before the model is sharded, which spares a second all-gather: give "
            "prepare_fully_shard activation_checkpointing= the classes of the layers, or a check_fn, and "
            "delete this call."
        ),
    ),
}


def find(source: Source) -> Iterator[Found]:
    """Find these calls, where the model is known to be FSDP1's."""
    for node in source.attributes:
        yield from _of_forward_by_name(source, node)
    yield from _of_copies(source)
    for call in source.calls:
        func = call.func
        if isinstance(func, cst.Attribute):
            yield from _of_method(source, call, func)
        first = call.args[0].value if call.args else None
        if isinstance(func, (cst.Name, cst.Attribute)) and not source.index.qualified(func) & set(_FUNCTIONS):
            named = _CHECKPOINTS.search(last_name(func))
            if named and first is not None and source.models.certainty(first) is not None:
                yield Found("FM324", call, _of_checkpointing(source, first), "commented")
        for name in source.index.qualified(func) & set(_FUNCTIONS):
            known = first is not None and source.models.certainty(first) is not None
            if first is not None and name in _AVERAGES:
                known = whole_of(source, first) is not None
            if (
                known
                or name.endswith(".prepare_fsdp")
                or (name == _APPLY and _comes_after_wrapping(source, call))
            ):
                code, meant = _FUNCTIONS[name]
                if name == _APPLY and first is not None:
                    meant = f"{_of_checkpointing(source, first)} {words_of_check(source, call)}".strip()
                yield Found(code, call, meant, "commented")


def _of_checkpointing(source: Source, model: cst.BaseExpression) -> str:
    """Return what checkpoints the layers of a model, by whom it is sharded."""
    name = name_of_framework(source, model)
    setting = _BY_SETTING.get(source.models.sharded_by(model), "")
    return _BY_FRAMEWORK.format(name, setting) if name else _FUNCTIONS[_APPLY][1]


def _of_copies(source: Source) -> Iterator[Found]:
    """Find copies of parts of a model and of its parameters, which torch makes only without gradients."""
    for call, is_part in copies(source):
        yield Found("FM323", call, _PART_COPIED if is_part else _COPIED, "commented")


def _of_method(source: Source, call: cst.Call, func: cst.Attribute) -> Iterator[Found]:
    """Find the methods of FSDP1's that FSDP2 does otherwise, and those of the model itself that compute."""
    name = func.attr.value
    is_lost = name == "register_comm_hook" and was_fsdp1s(source, func.value)
    if name in _METHODS and (is_lost or _is_model(source, func.value)):
        if name == "apply" and is_without_parameters(source, func.value, call):
            return
        code, meant = _METHODS[name]
        yield Found(code, call, meant, "commented")
    elif name == "apply" and _is_of_a_part(source, call, func):
        yield Found("FM322", call, _INITIALISES, "commented")
    elif name == "forward" and not _is_frameworks(source, func.value):
        yield from _of_forward(source, call, func)
    else:
        if initialises(source, func):
            yield Found("FM322", call, _INITIALISES, "commented")
        if _is_before_forwards(source, call, func):
            yield Found("FM448", call, _BY_METHOD.format(name), "commented")


def _is_of_a_part(source: Source, call: cst.Call, func: cst.Attribute) -> bool:
    """Tell whether a function is applied to a part of a sharded model: ``model.blocks.apply(init)``."""
    if len(call.args) != 1 or call.args[0].keyword is not None:
        return False
    node = holder_of(source.models, func.value)
    while node is not None:
        if source.models.certainty(node) is not None:
            return not is_without_parameters(source, node, call)
        node = holder_of(source.models, node)
    return False


def _is_model(source: Source, node: cst.BaseExpression) -> bool:
    return source.models.certainty(node) is not None or source.models.is_guarded(node)


def _of_forward_by_name(source: Source, node: cst.Attribute) -> Iterator[Found]:
    """Find ``forward`` of a model that is given to something, or kept under a name, to be called there."""
    above = source.index.parents[node]
    if node.attr.value != "forward":
        return
    # An expression of its own, `model.forward`, names it and does nothing.
    is_target = isinstance(above, (cst.AssignTarget, cst.Attribute, cst.Comparison, cst.Del, cst.Expr))
    if is_target or _is_frameworks(source, node.value):
        return
    if isinstance(above, cst.Call) and above.func is node:
        return
    call = source.index.parents[above] if isinstance(above, cst.Arg) else None
    if isinstance(call, cst.Call) and (
        last_name(call.func) in _LOOKS or is_looked_at_by_function(source, call, above)
    ):
        return
    if (readers := _readers_of(source, above)) and all(_is_looked_at(source, each) for each in readers):
        return
    text = dotted(node)
    if any(dotted(target.target) == text for assign in source.assignments for target in assign.targets):
        return  # one that is kept for, or called in, another forward of the model
    sure = "sure" if _is_unit_by_project(source, node.value) else sureness(source, node.value)
    if sure == "sure" and _is_only_called(source, above):
        edit = Replace(node, lambda updated: updated.value)
        yield Found("FM448", node, short(node.value), "rewritten", (edit,))
    elif sure in {"mixed", "sure"}:
        yield Found("FM448", node, _HANDED_ON, "commented")


def _readers_of(source: Source, assign: cst.CSTNode) -> list[cst.CSTNode]:
    """Return where the name is read that an assignment gives something."""
    target = assign.targets[0].target if isinstance(assign, cst.Assign) and len(assign.targets) == 1 else None
    if not isinstance(target, cst.Name):
        return []
    return [each for each in source.readers(target) if each is not target]


def _is_looked_at(source: Source, node: cst.CSTNode) -> bool:
    """Tell whether something is given to a function that only looks at it: ``inspect.signature(f)``."""
    arg = source.index.parents[node]
    call = source.index.parents[arg]
    if not isinstance(call, cst.Call) or call.func is node:
        return False
    return last_name(call.func) in _LOOKS or is_looked_at_by_function(source, call, arg)


def _is_only_called(source: Source, assign: cst.CSTNode) -> bool:
    """Tell whether what an assignment keeps under a name is called under it, and nothing else."""
    readers = _readers_of(source, assign)
    calls = (source.index.parents[each] for each in readers)
    return bool(readers) and all(
        isinstance(call, cst.Call) and call.func is each for each, call in zip(readers, calls, strict=True)
    )


def _of_forward(source: Source, call: cst.Call, func: cst.Attribute) -> Iterator[Found]:
    """Find ``model.forward(...)``, which FSDP1's wrapper answered as a call of the model."""
    sure = sureness(source, func.value)
    if sure == "sure":
        edit = Replace(func, lambda updated: updated.value)
        yield Found("FM448", call, f"{short(func.value, 30)}(...)", "rewritten", (edit,))
    elif sure == "mixed" and dotted(func.value) != "self":  # in a class of its own it calls its parts
        yield Found("FM448", call, _FORWARD, "commented")
    elif _is_of_a_unit(source, func.value):
        edit = Replace(func, lambda updated: updated.value)
        yield Found("FM448", call, f"{short(func.value, 30)}(...)", "rewritten", (edit,))


def _is_frameworks(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether a framework's own module answers for a model, and no unit of FSDP1's does."""
    return is_in_a_module(source, node) and not _is_unit_by_project(source, node)


def _is_unit_by_project(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether other files of the project make a part of this one's modules a unit."""
    told = source.links.unit_forwards
    return bool(told) and (source.position(node)[0], text_of(node)) in told


def _is_of_a_unit(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether it is a part of a sharded model that may be a unit: its forward alone gathers nothing."""
    if _is_unit_by_project(source, node):
        return True
    if (part := part_of(source, node)) is not None:
        is_sure = source.models.certainty(part.model) != "mixed"
        held = units_of(source).held_by(part)
        return held != "none" if is_sure else held == "all"
    own = own_part(source, node) if source.uses_fsdp1 else None
    return own is not None and units_of(source).is_unit(own)


def _is_before_forwards(source: Source, call: cst.Call, func: cst.Attribute) -> bool:
    """Tell whether a method that computes is the first thing that a model does, as far as this source shows.

    Only NO_SHARD's models could do that outside of a context. It is said once for each method and function.
    """
    if COMPUTES.search(func.attr.value) is None or source.models.certainty(func.value) is None:
        return False
    if not (source.models.links.no_shard or chooses_no_shard(source.code)):
        return False
    if is_sharded_for_certain(source.models, func.value):
        return False
    names = {last_name(other.func) for other in source.calls}
    above = source.index.ancestors(call)
    if names & _REGISTERS or any(
        "summon_full_params" in text_of(a.items[0]) for a in above if isinstance(a, cst.With)
    ):
        return False
    function, place = source.index.function(call), source.index.order[call]
    for other in source.calls:
        is_here = source.index.function(other) is function
        if (
            is_here
            and other is not call
            and source.index.order[other] < place
            and source.same(other.func, func)
        ):
            return False
        if source.models.certainty(other.func) is not None and not (
            is_here and source.index.order[other] > place
        ):
            return False
    return True


def _comes_after_wrapping(source: Source, call: cst.Call) -> bool:
    """Tell whether the same function wraps a model above, whatever the model is called here."""
    function, place = source.index.function(call), source.index.order[call]
    return any(
        source.models.is_constructor(other.func)
        and source.index.function(other) is function
        and source.index.order[other] < place
        and not source.index.excludes(other, call)
        for other in source.calls
    )
