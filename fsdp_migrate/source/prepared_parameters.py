"""Parameters under Accelerate's FSDP: lists from before ``prepare``, and norms of a part of the model."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.accelerate_models import prepared
from fsdp_migrate.source.python.held import has_model
from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.nodes import dotted, text_of, walk_for
from fsdp_migrate.source.python.parameters import PARAMETERS, model_of


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


# What is asked of the old parameters alone: how many there are.
_COUNTS = re.compile(r"\bnumel\b|\blen\(|\bprint\(|\blog(?:ger)?\.|\binfo\(")


def kept_before_prepare(source: Source) -> Iterator[cst.Assign]:
    """Yield lists of parameters from before Accelerate shards the model that are used after it.

    The optimizer is pointed at the new parameters by ``prepare``; a list still holds the old ones.
    """
    told: set[cst.Assign] = set()
    for call in source.calls:
        if not prepared(call) or not has_model(source.models.kinds(call)):
            continue
        place, function = source.index.order[call], source.index.function(call)
        for assign in source.assignments:
            if source.index.order[assign] > place:
                break
            is_near = source.index.function(assign) is function and not source.index.excludes(assign, call)
            if assign not in told and is_near and model_of(source.index, assign.value) is not None:
                names = (dotted(each.target) for each in assign.targets)
                if any(name is not None and _is_used(source, name, assign, call) for name in names):
                    told.add(assign)
                    yield assign


def _is_used(source: Source, name: str, assign: cst.Assign, call: cst.Call) -> bool:
    """Tell whether what an assignment keeps is read below a call, and not only counted."""
    function, owner = source.index.function(assign), source.index.class_of(assign)
    anew = [
        other
        for other in source.assignments
        if other is not assign and any(dotted(each.target) == name for each in other.targets)
    ]
    for node in source.index.by_kind.get(cst.Attribute if "." in name else cst.Name, ()):
        if dotted(node) != name or isinstance(source.index.parents[node], cst.AssignTarget):
            continue
        place = source.index.order[node]
        is_same = source.index.class_of(node) is owner if "." in name else _is_in(source, node, function)
        is_below = place > source.index.order[call] or source.index.function(node) is not function
        if not is_same or not is_below or any(source.index.order[each] < place for each in anew):
            continue
        if _COUNTS.search(text_of(source.index.statement(node))) is None:
            return True
    return False


def _is_in(source: Source, node: cst.CSTNode, function: cst.CSTNode | None) -> bool:
    return source.index.function(node) is function


def is_of_a_part(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether parameters are some of those of a model that Accelerate shards: of a module, or chosen."""
    value = last_value(source.index, node) if isinstance(node, cst.Name) else node
    if isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute):
        inner = value.func.value
        if value.func.attr.value in PARAMETERS and not _is_accelerates(source, inner):
            return _is_module_of_one(source, inner)
    model = model_of(source.index, value) if value is not None else None
    return model is not None and value is not None and _chooses(value) and _is_accelerates(source, model)


def _is_accelerates(source: Source, model: cst.BaseExpression) -> bool:
    return source.models.sharded_by(model) == "accelerate"


def _is_module_of_one(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether it is a module in a sharded model, by its name: ``model.head``."""
    is_below = False
    while isinstance(node, (cst.Attribute, cst.Subscript)):
        is_below = is_below or not (isinstance(node, cst.Attribute) and node.attr.value == "module")
        node = node.value
        if _is_accelerates(source, node):
            return is_below
    return False


def _chooses(value: cst.BaseExpression) -> bool:
    """Tell whether a list of parameters leaves some out."""
    if any(each.ifs for each in walk_for(value, cst.CompFor)):
        return True
    return any((dotted(each.func) or "") == "filter" for each in walk_for(value, cst.Call))
