"""Averages of weights (EMA) that stay plain beside a sharded model: torch refuses the two in one operation.

Under FSDP1 both models were sharded alike, or a framework left both as they were.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.last_values import last_value, stands_for, values_set
from fsdp_migrate.source.python.loops import binds, loops_around
from fsdp_migrate.source.python.nodes import dotted, last_name, text_of, walk_for
from fsdp_migrate.source.python.parameters import PARAMETERS


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.parameter_values import ParameterValues
    from fsdp_migrate.source.python.text import Source


MEANT = (
    "a plain model's parameter meets a DTensor here, which torch refuses: take .full_tensor() of the sharded "
    "model's, on every rank, or shard both models alike."
)
_JOINS = frozenset({"add", "add_", "copy_", "lerp", "lerp_", "mul_", "sub_"})
# What may shard the model that it is given.
_SHARDS = re.compile(r"fsdp|parallel|prepare|setup|shard|wrap", re.IGNORECASE)


def met_models(values: ParameterValues) -> Iterator[cst.CSTNode]:
    """Yield where a parameter of a plain model meets one of a sharded model: ``p.data.add_(q.data)``."""
    source = values.source
    for call in source.calls:
        func = call.func
        if not isinstance(func, cst.Attribute) or func.attr.value not in _JOINS:
            continue
        own = model_of_one(source, root_of(func.value))
        if own is None or not _is_plain(values, own):
            continue
        given = [each for arg in call.args for each in _roots(arg.value)]
        others = [model for each in given if (model := model_of_one(source, each)) is not None]
        is_met = any(values.is_sharded(each) for each in others)
        if is_met and not source.contexts.is_summoned(call) and not _is_made_plain(call):
            yield call


def _roots(node: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """Yield what an expression is made of: ``q`` of ``(1 - rate) * q.data``."""
    root = root_of(node)
    if isinstance(root, cst.BinaryOperation):
        for side in (root.left, root.right):
            yield from _roots(side)
    else:
        yield root


def root_of(node: cst.BaseExpression) -> cst.BaseExpression:
    """Return what attributes and methods are taken of: ``p`` of ``p.data.mul_(rate)``."""
    while isinstance(node, (cst.Attribute, cst.Call)):
        if isinstance(node, cst.Call) and not isinstance(node.func, cst.Attribute):
            break
        node = (
            node.value if isinstance(node, cst.Attribute) else cst.ensure_type(node.func, cst.Attribute).value
        )
    return node


def _is_made_plain(call: cst.Call) -> bool:
    names = {each.attr.value for each in walk_for(call, cst.Attribute)}
    return bool(names & {"full_tensor", "to_local"})


def model_of_one(source: Source, node: cst.BaseExpression) -> cst.BaseExpression | None:
    """Return the model whose parameter a name of a loop, or an item of a dict, is."""
    if (
        isinstance(node, cst.Subscript)
        and isinstance(node.value, cst.Name)
        and node.value in source.index.scopes
    ):
        held = last_value(source.index, node.value)
        if isinstance(held, cst.DictComp):
            return _asked(held.for_in.iter)
        is_dict = isinstance(held, cst.Call) and dotted(held.func) == "dict" and len(held.args) == 1
        return _asked(cst.ensure_type(held, cst.Call).args[0].value) if is_dict else None
    if not isinstance(node, cst.Name) or node not in source.index.scopes:
        return None
    loop = next((each for each in loops_around(source.index, node) if binds(each, node.value)), None)
    if loop is None:
        return None
    over, target = loop.iter, loop.target
    if not isinstance(over, cst.Call) or dotted(over.func) != "zip":
        return _asked(over)
    places = target.elements if isinstance(target, cst.Tuple) else ()
    for arg, place in zip(over.args, places, strict=False):
        if any(name.value == node.value for name in walk_for(place, cst.Name)):
            return _asked(arg.value)
    return None


def _asked(node: cst.BaseExpression) -> cst.BaseExpression | None:
    """Return the model that is asked for its parameters."""
    is_call = isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute)
    func = cst.ensure_type(node, cst.Call).func if is_call else None
    return func.value if isinstance(func, cst.Attribute) and func.attr.value in PARAMETERS else None


def _is_plain(values: ParameterValues, model: cst.BaseExpression) -> bool:
    """Tell whether a model is made here, and given to nothing that may shard it; an argument in each call."""
    source = values.source
    if isinstance(model, cst.Name) and model in source.index.scopes:
        bindings = source.index.scopes[model].lookup(model.value)
        if len(bindings) == 1 and bindings[0].kind == "param":
            every = stands_for(source.index, source.models.guards, model)
            given = [each for each in every if not source.contexts.is_summoned(each)]
            return bool(given) and all(_is_left_plain(values, each) for each in given)
    return _is_left_plain(values, model)


def _is_left_plain(values: ParameterValues, model: cst.BaseExpression) -> bool:
    source = values.source
    if model not in source.index.scopes or values.is_sharded(model):
        return False
    every = _made_of(source, model)
    made = [each for each in every if isinstance(each, cst.Call)]
    if not made or len(made) < len(every) or any(map(_shards, made)):
        return False
    if any(values.is_sharded(arg.value) for each in made for arg in each.args):
        return False
    shards = filter(_shards, source.calls)
    text = text_of(model)
    return not any(
        text_of(name) == text
        for call in (*shards, *made)
        for arg in call.args
        for name in walk_for(arg, type(model))
    )


def _shards(call: cst.Call) -> bool:
    """Tell whether a call may shard what it is given, as its name says."""
    return _SHARDS.search(last_name(call.func)) is not None


def _made_of(source: Source, model: cst.BaseExpression) -> list[cst.BaseExpression]:
    """Return what a name is bound to, or all that ``self.ema`` of a class is set to; None does not count."""
    if isinstance(model, cst.Attribute):
        return [each for each in values_set(source.index, model) if text_of(each) != "None"]
    last = last_value(source.index, model) if isinstance(model, cst.Name) else None
    return [] if last is None else [last]
