"""Lists of lists of parameters: ``grads.append([p.grad for p in ...])`` for each task, of which one is taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.containers import is_slice
from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.loops import binds, loops_around
from fsdp_migrate.source.python.nodes import dotted


if TYPE_CHECKING:
    from collections.abc import Callable

    from fsdp_migrate.source.parameter_values import ParameterValues


_COMPREHENSIONS = (cst.GeneratorExp, cst.ListComp, cst.SetComp)
_SAME = frozenset({"enumerate", "list", "reversed", "sorted", "tuple", "zip"})


def is_a_list_of_one(
    values: ParameterValues, node: cst.BaseExpression, is_many: Callable[[cst.BaseExpression], bool]
) -> bool:
    """Tell whether an expression is one of several lists: ``grads[0]``, or the name of a loop over them."""
    if isinstance(node, cst.Subscript):
        return not is_slice(node) and _are_lists(values, node.value, is_many)
    if not isinstance(node, cst.Name):
        return False
    around = loops_around(values.source.index, node)
    return any(_are_lists(values, loop.iter, is_many) for loop in around if binds(loop, node.value))


def _are_lists(
    values: ParameterValues, node: cst.BaseExpression, is_many: Callable[[cst.BaseExpression], bool]
) -> bool:
    """Tell whether what it holds are lists of parameters or gradients."""
    if isinstance(node, _COMPREHENSIONS):
        return is_many(node.elt)
    if isinstance(node, cst.DictComp):
        return is_many(node.value)
    if isinstance(node, (cst.Dict, cst.List, cst.Tuple)):
        return any(is_many(each.value) for each in node.elements)
    if isinstance(node, cst.Call):
        is_asked = isinstance(node.func, cst.Attribute) and node.func.attr.value in {"items", "values"}
        if is_asked and isinstance(node.func, cst.Attribute):
            return _are_lists(values, node.func.value, is_many)
        return dotted(node.func) in _SAME and any(_are_lists(values, arg.value, is_many) for arg in node.args)
    if not isinstance(node, (cst.Attribute, cst.Name)) or node not in values.source.index.scopes:
        return False
    key = values.source.models.key_of(node)
    put = values.fillings.get(key, ()) if key is not None else ()
    if any(is_many(each.value) for each in put if not each.is_many):
        return True
    made = last_value(values.source.index, node) if isinstance(node, cst.Name) else None
    return isinstance(made, (*_COMPREHENSIONS, cst.Dict, cst.DictComp, cst.List, cst.Tuple)) and _are_lists(
        values, made, is_many
    )
