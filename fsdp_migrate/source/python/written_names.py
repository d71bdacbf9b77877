"""The names under which the project's other files may say what a call gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.nodes import dotted


if TYPE_CHECKING:
    from fsdp_migrate.source.python.scopes import Index


def written_names(index: Index, func: cst.BaseExpression) -> set[str]:
    """Return what a file calls a function: as imports write it, or by the object whose method it is.

    ``Trainer:self.build`` in a class, ``main:trainer.build`` of an object that a function has, and
    ``pkg.Strategy().prepare`` of one that is made there.
    """
    names, text = index.qualified(func), dotted(func)
    if text is None:
        is_made = isinstance(func, cst.Attribute) and isinstance(func.value, cst.Call)
        if not is_made or not isinstance(func, cst.Attribute) or not isinstance(func.value, cst.Call):
            return names
        return {f"{start}().{func.attr.value}" for start in written_names(index, func.value.func)}
    if text.startswith(("self.", "cls.")):
        owner = index.class_of(func)
        return names if owner is None else {f"{index.path_of(owner)}:{text}"}
    if "." in text:
        return names or {f"{index.path_of(index.function(func) or index.module)}:{text}"}
    is_free = isinstance(func, cst.Name) and not names and not index.bindings_of(func)
    return {text} if is_free else names
