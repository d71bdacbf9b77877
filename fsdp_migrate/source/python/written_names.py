"""The names under which the project's other files may say what a call gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.call_signatures import is_told_off
from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.nodes import dotted, kept, placed_arguments


if TYPE_CHECKING:
    from fsdp_migrate.source.python.scopes import Binding, Index


@kept
def written_names(index: Index, func: cst.BaseExpression) -> set[str]:
    """Return what a file calls a function: as imports write it, or by the object whose method it is.

    ``Trainer:self.build`` in a class, ``main:trainer.build`` of an object that a function has, and
    ``pkg.Strategy().prepare`` of one that is made there. A partial has the names of what it is of.
    """
    func = _of_partial(index, func)
    names, text = index.qualified(func), dotted(func)
    if text is None:
        is_made = isinstance(func, cst.Attribute) and isinstance(func.value, cst.Call)
        if not is_made or not isinstance(func, cst.Attribute) or not isinstance(func.value, cst.Call):
            return names
        made = written_names(index, func.value.func) or {dotted(func.value.func) or "?"}
        return {f"{start}().{func.attr.value}" for start in made}
    if text.startswith(("self.", "cls.")):
        owner = index.class_of(func)
        return names if owner is None else {f"{index.path_of(owner)}:{text}"}
    if "." in text:
        return names or {f"{index.path_of(index.function(func) or index.module)}:{text}"}
    if not isinstance(func, cst.Name):
        return names
    if bindings := index.bindings_of(func):
        if any(isinstance(each.node, cst.FunctionDef) for each in bindings):
            return names or {text}
        # Of a class and of a partial more is known by what they are.
        is_called = not names and not any(_is_known(index, each) for each in bindings)
        return {f"{index.path_of(index.function(func) or index.module)}:{text}"} if is_called else names
    # By `import *`, which may bring a function that is called as one of torch's: `wrap`.
    return {text, *names}


def _is_known(index: Index, binding: Binding) -> bool:
    made = binding.value.func if isinstance(binding.value, cst.Call) else None
    is_partial = made is not None and "functools.partial" in index.qualified(made)
    return is_partial or isinstance(binding.node, cst.ClassDef)


def _of_partial(index: Index, func: cst.BaseExpression) -> cst.BaseExpression:
    """Return what a name, or an attribute, is a partial of, if that says nothing against sharding."""
    is_named = isinstance(func, cst.Attribute) or (isinstance(func, cst.Name) and func in index.scopes)
    value = last_value(index, func) if is_named and isinstance(func, (cst.Attribute, cst.Name)) else func
    if not isinstance(value, cst.Call) or "functools.partial" not in index.qualified(value.func):
        return func
    # What is given by its place would stand before what a call gives.
    placed = placed_arguments(value)
    is_one = len(placed) == 1 and not any(arg.star == "*" for arg in value.args)
    return placed[0] if is_one and not is_told_off(value, ()) else func
