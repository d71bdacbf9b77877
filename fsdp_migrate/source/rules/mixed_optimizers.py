"""One list of sharded and of plain tensors: torch's foreach kernels, those of its optimizers too, refuse it.

``AdamW(chain(head.parameters(), model.parameters()))`` was right under FSDP1, whose parameters are tensors.
Where ``prepare_fully_shard`` has sharded a model, such an optimizer's step is taken without those kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.containers import added_to
from fsdp_migrate.source.python.held import MODEL, has_model
from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.nodes import (
    dotted,
    given_by_name,
    last_name,
    literal,
    text_of,
    walk_for,
    word_of,
)
from fsdp_migrate.source.python.object_fields import classes
from fsdp_migrate.source.python.own_names import values_bound
from fsdp_migrate.source.python.parameters import SAME_PARAMETERS, is_torchs_optimizer, model_of
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "mixed-optimizer"
CODES = ("FM447",)

_MEANT = (
    "stays: foreach, whose kernels refuse sharded and plain parameters in one group, is switched off before "
    "its steps. A group for each, [{'params': ...}, {'params': ...}], is faster"
)
_FOREACH = (
    "this goes through a sharded model's parameters, which are DTensors now, and its buffers, which are "
    "plain: torch._foreach_* refuses both in one list. Give each a list of its own."
)
_AVERAGED = (
    "with use_buffers=True a sharded model's parameters, which are DTensors now, and its buffers, which are "
    "plain, are averaged in one list: torch._foreach_* refuses it at the second update. Leave it False, and "
    "copy the buffers apart."
)
_AVERAGES = "torch.optim.swa_utils.AveragedModel"
_BOTH = {
    "buffers": "buffers",
    "named_buffers": "buffers",
    "named_parameters": "parameters",
    "parameters": "parameters",
}
_MAX_DEPTH = 3


def find(source: Source) -> Iterator[Found]:
    """Find optimizers of torch that are given both kinds of parameters in one list."""
    for call in source.calls:
        if not call.args or call.args[0].star or not _is_torchs(source, call):
            continue
        if any(literal(each) is False for each in given_by_name(call, "foreach")):
            continue
        if _are_both(source, [call.args[0].value]):
            yield Found("FM447", call, _MEANT, "kept")
    yield from (Found("FM447", loop.iter, _FOREACH, "commented") for loop in _of_foreach(source))
    yield from (Found("FM447", call, _AVERAGED, "commented") for call in _of_averages(source))


def _of_averages(source: Source) -> Iterator[cst.Call]:
    """Yield what updates averages of a sharded model, its buffers too: by torch's class, or one below it."""
    if "use_buffers" not in source.code or _AVERAGES.rpartition(".")[2] not in source.code:
        return
    for call in source.calls:
        func = call.func
        if not isinstance(func, cst.Attribute) or func.attr.value != "update_parameters" or not call.args:
            continue
        model = call.args[0].value
        if source.models.certainty(model) is None and not source.models.is_asked(model):
            continue
        if text_of(func.value) == "super()":
            owner = source.index.class_of(call)
            if owner is not None and _averages(source, owner):
                yield call
        elif any(map(_takes_buffers, _made_of(source, func.value))):
            yield call


def _made_of(source: Source, node: cst.BaseExpression) -> Iterator[cst.Call]:
    """Yield the calls that make an object of averages."""
    for value in values_bound(source, node):
        if isinstance(value, cst.Call):
            own = classes(source.index, value.func)
            if _AVERAGES in source.index.qualified(value.func) or any(_averages(source, e) for e in own):
                yield value


def _averages(source: Source, node: cst.ClassDef) -> bool:
    return any(_AVERAGES in source.index.qualified(base.value) for base in node.bases)


def _takes_buffers(call: cst.Call) -> bool:
    return any(literal(each) is not False for each in given_by_name(call, "use_buffers"))


def steps_both(source: Source, call: cst.Call) -> bool:
    """Tell whether an optimizer is given sharded and plain parameters, in one group or several.

    Or those of a plain module of which a part was sharded.
    """
    groups = (group for each in _groups(source, call) for group in walk_for(each, cst.Dict))
    elements = (each for group in groups for each in group.elements if isinstance(each, cst.DictElement))
    given = [
        *_groups(source, call),
        *(each.value for each in elements if word_of(each.key) == "params"),
    ]
    if _are_both(source, given):
        return True
    return any(_has_sharded_part(source, model) for each in given for model in _models(source, each))


def _has_sharded_part(source: Source, model: cst.BaseExpression) -> bool:
    """Tell whether a plain module's part is sharded where it stands: ``guide.core = FSDP(guide.core)``.

    A class that holds a sharded model and no more makes that itself.
    """
    kinds, inside = source.models.kinds(model), f"{text_of(model)}."
    is_sharded = MODEL in kinds and source.models.key_of(model) not in source.models.wholes
    if is_sharded or not has_model(kinds):
        return False
    return any(
        isinstance(each.value, cst.Call)
        and source.models.is_constructor(each.value.func)
        and any(text_of(target.target).startswith(inside) for target in each.targets)
        for each in source.assignments
    )


def _groups(source: Source, call: cst.Call) -> list[cst.BaseExpression]:
    """Return what an optimizer is given first, and what it stands for where that is a name."""
    given = [arg.value for arg in call.args[:1] if not arg.star]
    named = (last_value(source.index, each) for each in given if isinstance(each, cst.Name))
    return [*given, *(each for each in named if each is not None)]


def _are_both(source: Source, lists: list[cst.BaseExpression]) -> bool:
    """Tell whether some lists hold the parameters of a sharded model, and of one that is not."""
    models = {text_of(each): each for given in lists for each in _models(source, given)}
    is_any = any(source.models.certainty(each) == "certain" for each in models.values())
    return is_any and any(_is_plain(source, each, models) for each in models.values())


def _of_foreach(source: Source) -> Iterator[cst.For | cst.CompFor]:
    """Yield loops that make one list of a sharded model's parameters and buffers, for torch's foreach."""
    if "torch._foreach_" not in source.code:
        return
    for node in source.index.by_kind.get(cst.For, ()):
        loop = cst.ensure_type(node, cst.For)
        added = (value for call in walk_for(loop.body, cst.Call) for _, _, value in added_to(call))
        names = {each.value for each in walk_for(loop.target, cst.Name)}
        if any(isinstance(each, cst.Name) and each.value in names for each in added) and _has_both(
            source, loop.iter
        ):
            yield loop
    for node in source.index.by_kind.get(cst.CompFor, ()):
        made = cst.ensure_type(node, cst.CompFor)
        if isinstance(source.index.parents[made], cst.ListComp) and _has_both(source, made.iter):
            yield made


def _has_both(source: Source, over: cst.BaseExpression) -> bool:
    """Tell whether a loop goes through the parameters and the buffers of one sharded model."""
    if isinstance(over, cst.Call) and dotted(over.func) == "zip":
        return any(_has_both(source, arg.value) for arg in over.args)
    taken: dict[str, set[str]] = {}
    for call in [*walk_for(over, cst.Call), *_in_functions(source, over)]:
        func = call.func
        if isinstance(func, cst.Attribute) and func.attr.value in _BOTH:
            taken.setdefault(text_of(func.value), set()).add(_BOTH[func.attr.value])
            if source.models.certainty(func.value) is not None:
                taken[text_of(func.value)].add("sharded")
    return any({"buffers", "parameters", "sharded"} <= kinds for kinds in taken.values())


def _in_functions(source: Source, over: cst.BaseExpression) -> Iterator[cst.Call]:
    """Yield the calls of the functions here that a loop asks for what it goes through."""
    for call in walk_for(over, cst.Call):
        for function in source.models.guards.functions(call.func):
            yield from walk_for(function.body, cst.Call)


def _is_torchs(source: Source, call: cst.Call) -> bool:
    known = source.index.qualified(call.func)
    return any(map(is_torchs_optimizer, known))


def _is_plain(source: Source, model: cst.BaseExpression, others: dict[str, cst.BaseExpression]) -> bool:
    """Tell whether nothing says that a module is sharded: neither it, nor a model that it is a part of."""
    text = text_of(model)
    if any(text.startswith(f"{other}.") for other in others):
        return False
    return source.models.is_unknown(model) and not source.models.is_asked(model)


def _models(source: Source, node: cst.BaseExpression, depth: int = 0) -> Iterator[cst.BaseExpression]:
    """Yield the models whose parameters one list holds."""
    parts = list(_parts(source, node)) if depth < _MAX_DEPTH else []
    for part in parts:
        yield from _models(source, part, depth + 1)
    model = None if parts else model_of(source.index, node)
    if model is not None:
        yield model


def _parts(source: Source, node: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """Yield what a list is put together of."""
    if isinstance(node, cst.Name) and node in source.index.scopes:
        value = last_value(source.index, node)
        yield from () if value is None else (value,)
    elif isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Add):
        yield from (node.left, node.right)
    elif isinstance(node, cst.Call) and last_name(node.func) in SAME_PARAMETERS:
        yield from (arg.value for arg in node.args)
    elif isinstance(node, (cst.List, cst.Tuple)):
        yield from (each.value for each in node.elements if isinstance(each, cst.StarredElement))
