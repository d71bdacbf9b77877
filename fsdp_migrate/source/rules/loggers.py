"""What loggers make of parameters: ``wandb.watch(model, log="all")``, histograms, Lightning's ``grad_norm``.

Under FSDP1 they were plain tensors; FSDP2's are DTensors, of which a minimum is a collective, and an array is
an error.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.fails_at_once import refused
from fsdp_migrate.source.parameter_values import ParameterValues
from fsdp_migrate.source.python.held import has_model
from fsdp_migrate.source.python.nodes import dotted, given_by_name, placed_arguments, text_of
from fsdp_migrate.source.sharded_parts import whole_of
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "loggers"
CODES = ("FM336", "FM423")

_MEANT = (
    "wandb looks at every parameter in a hook of the forward, and they are DTensors now where the model is "
    "sharded: each look is a collective, so that a rank which watches alone hangs, and making lists of them "
    "raises. Leave log= at 'gradients', and log what you need of p.full_tensor(), which every rank asks for."
)
_HISTOGRAM = (
    "this makes an array of what it is given, which a DTensor does not allow: give it .to_local() for this "
    "rank's part, as before, or .full_tensor(), which every rank must call."
)
_GRAD_NORM = (
    "Lightning makes a plain tensor of the norms of the gradients here, which are DTensors where the model "
    "is sharded: that raises. Log by hand what you need, on every rank: `p.grad.norm().full_tensor()` of "
    "each of named_parameters(), and torch.stack(...).norm() of these for all."
)
_HISTOGRAMS = frozenset({"Histogram", "add_histogram", "histogram"})
_WATCHES_PARAMETERS = re.compile(r"^['\"](all|parameters)['\"]$")
_LIGHTNINGS_NORM = re.compile(r"^(lightning\.pytorch|pytorch_lightning)\.utilities\.(grads\.)?grad_norm$")
_LOG_PLACE = 2  # watch(models, criterion, log)
_VARIABLE = "WANDB_WATCH"


def find(source: Source) -> Iterator[Found]:
    """Find what is watched, before a model is sharded too, histograms, and norms that Lightning makes."""
    values = ParameterValues(source)
    for call in source.calls:
        func = call.func
        name = func.attr.value if isinstance(func, cst.Attribute) else dotted(func)
        if name == "watch" and isinstance(call.func, cst.Attribute) and _reads_parameters(call):
            model = _model_of(call)
            if model is not None and _is_sharded(source, model):
                yield Found("FM423", call, _MEANT, "commented")
        elif any(map(_LIGHTNINGS_NORM.match, source.index.qualified(func))):
            model = next(iter((*given_by_name(call, "module"), *placed_arguments(call))), None)
            if model is not None and _is_sharded(source, model) and not source.contexts.is_summoned(call):
                yield Found(refused(source, call), call, _GRAD_NORM, "commented")
        elif (
            name in _HISTOGRAMS
            and not source.contexts.is_summoned(call)
            and any(values.is_one(arg.value) for arg in call.args if not arg.star)
        ):
            yield Found(refused(source, call), call, _HISTOGRAM, "commented")
    if _VARIABLE in source.code and source.models.frameworks.trainers.trainings:
        yield from _of_variable(source)


def _of_variable(source: Source) -> Iterator[Found]:
    """Find ``os.environ["WANDB_WATCH"] = "all"``, by which Hugging Face's Trainer watches its model."""
    for assign in source.assignments:
        is_set = any(_VARIABLE in text_of(each.target) for each in assign.targets)
        if is_set and _WATCHES_PARAMETERS.match(text_of(assign.value)):
            yield Found("FM423", assign, _MEANT, "commented")


def _reads_parameters(call: cst.Call) -> bool:
    placed = placed_arguments(call)
    named = given_by_name(call, "log")
    # A logger's own method, as Lightning's, has no criterion: watch(model, log).
    return any(_WATCHES_PARAMETERS.match(text_of(each)) for each in (*named, *placed[1 : _LOG_PLACE + 1]))


def _model_of(call: cst.Call) -> cst.BaseExpression | None:
    for arg in call.args:
        if (arg.keyword is None and not arg.star) or (
            arg.keyword is not None and arg.keyword.value in {"model", "models"}
        ):
            return arg.value
    return None


def _is_sharded(source: Source, model: cst.BaseExpression) -> bool:
    """Tell whether it is a sharded model, or becomes one: the hook stays on the module that is sharded."""
    models = source.models
    if isinstance(model, (cst.List, cst.Tuple)):
        return any(_is_sharded(source, each.value) for each in model.elements)
    if whole_of(source, model) is not None:
        return True
    if models.is_other_branch(model) or not isinstance(model, (cst.Name, cst.Attribute)):
        return False
    if models.frameworks.trains_by_lightning or _is_given_to_a_trainer(source, model):
        return True
    return _is_given_to_wrapping(source, model)


def _is_given_to_wrapping(source: Source, model: cst.BaseExpression) -> bool:
    """Tell whether a call below, in the same function, makes a sharded model of it."""
    models, index, text = source.models, source.index, text_of(model)
    for call in source.calls:
        if index.order[call] <= index.order[model] or index.function(call) is not index.function(model):
            continue
        is_given = any(text_of(arg.value) == text for arg in call.args)
        if is_given and has_model(models.kinds(call)) and not index.excludes(call, model):
            return True
    return False


def _is_given_to_a_trainer(source: Source, model: cst.BaseExpression) -> bool:
    """Tell whether Hugging Face's Trainer is given it, which shards it when it trains."""
    trainings, index = source.models.frameworks.trainers.trainings, source.index
    text = text_of(model)
    return any(name == text and index.function(call) is index.function(model) for call, name in trainings)
