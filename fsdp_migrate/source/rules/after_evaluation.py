"""Parameters that hooks of Hugging Face's Trainer write to between an evaluation and the next backward.

FSDP2's root, and units that are not sharded again, then show what they have gathered: plain, whole tensors.
FSDP1 showed its shards. ``doctor`` knows the fault as writes-after-evaluation; models that
``prepare_fully_shard`` shards do not have it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.frameworks import by_whom
from fsdp_migrate.source.python.held import has_model
from fsdp_migrate.source.python.nodes import last_name, text_of, walk_for
from fsdp_migrate.source.python.trainer_models import CALLBACK, TRAINER
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "after-evaluation"
CODES = ("FM423",)

_MEANT = (
    "after an evaluation FSDP2's root, and with `reshard_after_forward: false` every unit, shows whole, "
    "plain tensors until the next backward: what is written to them is lost, and beside DTensors that were "
    "kept it raises. FSDP1 showed its shards and kept what was written, but computed on with what its root "
    "had gathered (FM451): an evaluation behind it was of the root's old weights. "
    "Write above it `for each in {0}.modules():` with "
    "`if isinstance(each, FSDPModule): each.reshard()` in it; FSDPModule is torch.distributed.fsdp's."
)
# A step's own hooks run after its backward, which has sharded again; those of the start before any forward.
_HOOKS = frozenset(
    {
        *("on_epoch_begin", "on_epoch_end", "on_evaluate", "on_log", "on_predict", "on_prediction_step"),
        *("on_save", "on_step_begin", "on_train_end"),
    }
)
_EVALUATE = re.compile(r"^(?:evaluate|evaluation_loop|predict|prediction_loop|_maybe_log_save_evaluate)$")
_EVALUATES = ("evaluate", "predict")
_ASKS = frozenset({"named_parameters", "parameters"})
_IN_PLACE = re.compile(r"^[a-z]\w*[a-z]_$")
_SET = frozenset({"data", "requires_grad"})
_TAKES = re.compile(r"average|copy|ema|restore|soft|store|swap|update")
_DEEPEST = 3


def find(source: Source) -> Iterator[Found]:
    """Find loops that write to parameters, or by them, and averages that are given them, in such hooks."""
    trainers = source.models.frameworks.trainers
    if not trainers.run_by_trainer:
        return
    for node in source.index.by_kind.get(cst.For, ()):
        loop = cst.ensure_type(node, cst.For)
        if (
            (model := _asked(source, loop.iter)) is not None
            and _writes(loop)
            and is_after_evaluation(source, loop)
        ):
            yield Found("FM423", loop, _MEANT.format(text_of(model)), "commented")
    for call in source.calls:
        given = [arg.value for arg in call.args] if _TAKES.search(last_name(call.func)) else []
        model = next((each for arg in given if (each := _asked(source, arg)) is not None), None)
        if model is not None and is_after_evaluation(source, call):
            yield Found("FM423", call, _MEANT.format(text_of(model)), "commented")


def _asked(source: Source, node: cst.BaseExpression) -> cst.BaseExpression | None:
    """Return the model of Hugging Face's Trainer whose parameters an expression asks for."""
    for call in walk_for(node, cst.Call):
        if isinstance(call.func, cst.Attribute) and call.func.attr.value in _ASKS:
            kinds = source.models.kinds(call.func.value)
            if has_model(kinds) and by_whom(kinds) == "transformers":
                return call.func.value
    return None


def _writes(loop: cst.For) -> bool:
    """Tell whether a loop changes what it goes through, or something kept by it."""
    names = {each.value for each in walk_for(loop.target, cst.Name)}
    for call in walk_for(loop.body, cst.Call):
        func = call.func
        if isinstance(func, cst.Attribute) and _IN_PLACE.match(func.attr.value):
            used = (name for each in (func.value, *(arg.value for arg in call.args)) for name in _used(each))
            if not names.isdisjoint(used):
                return True
    set_on = (target.target for each in walk_for(loop.body, cst.Assign) for target in each.targets)
    return any(
        isinstance(each, cst.Attribute) and each.attr.value in _SET and names & set(_used(each.value))
        for each in set_on
    )


def _used(node: cst.BaseExpression) -> Iterator[str]:
    """Yield the names in an expression, those of its indices left out."""
    indices = {name for each in walk_for(node, cst.SubscriptElement) for name in walk_for(each, cst.Name)}
    yield from (name.value for name in walk_for(node, cst.Name) if name not in indices)


def is_after_evaluation(source: Source, node: cst.CSTNode, depth: int = 0) -> bool:
    """Tell whether a place is run between an evaluation and the next backward, as far as classes tell."""
    index, trainers = source.index, source.models.frameworks.trainers
    function, kind = index.function(node), trainers.kind_around(node)
    if function is None or not kind or depth > _DEEPEST:
        return False
    if any(_is_above(source, call, node) for call in index.calls_of_method("reshard")):
        return False
    name = function.name.value
    if kind == CALLBACK and name in _HOOKS:
        return True
    if kind == TRAINER and _EVALUATE.match(name):
        return any(_is_above(source, call, node) for call in index.calls_of_method(name))
    calls = index.calls_of_method(name)
    if any(_is_asked_after(source, call) for call in calls):
        return True
    own = (each for each in calls if index.class_of(each) is index.class_of(function))
    return any(is_after_evaluation(source, call, depth + 1) for call in own)


def _is_asked_after(source: Source, call: cst.Call) -> bool:
    """Tell whether a script evaluates by a Trainer, and then gives its model: ``ema.swap(trainer.model)``."""
    models = [arg.value for arg in call.args if isinstance(arg.value, cst.Attribute)]
    trainers = {text_of(each.value) for each in models if each.attr.value == "model"}
    evaluations = (each for name in _EVALUATES for each in source.index.calls_of_method(name))
    return any(
        isinstance(each.func, cst.Attribute)
        and text_of(each.func.value) in trainers
        and _is_above(source, each, call)
        for each in evaluations
    )


def _is_above(source: Source, call: cst.Call, node: cst.CSTNode) -> bool:
    """Tell whether a call stands above a place of the same function."""
    index = source.index
    return index.function(call) is index.function(node) and index.order[call] < index.order[node]
