"""Attributes that are read and set by their names, those that are methods, and what statements give."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, NamedTuple, cast

from fsdp_migrate.source.project import dotted
from fsdp_migrate.source.python.by_name import PROPERTIES, SETS


if TYPE_CHECKING:
    from fsdp_migrate.source.project import Function


class Named(NamedTuple):
    """An attribute by its whole name, and the default, or what it is set to."""

    text: str
    owner: ast.expr
    name: str
    value: ast.expr | None


def read_by_name(call: ast.Call) -> Named | None:
    """Return what ``getattr(model, "module", model)`` reads."""
    is_read = isinstance(call.func, ast.Name) and call.func.id == "getattr" and 2 <= len(call.args) <= 3
    return _named(call) if is_read else None


def set_by_name(call: ast.Call) -> Named | None:
    """Return what ``setattr(self, "model", model)`` sets."""
    is_set = len(call.args) == 3 and dotted(call.func) in SETS
    return _named(call) if is_set else None


def _named(call: ast.Call) -> Named | None:
    name, start = call.args[1], dotted(call.args[0])
    text = name.value if isinstance(name, ast.Constant) else None
    if not isinstance(text, str) or not text.isidentifier() or start is None:
        return None
    return Named(f"{start}.{text}", call.args[0], text, call.args[2] if len(call.args) == 3 else None)


def is_property(function: Function) -> bool:
    """Tell whether a method is read as an attribute."""
    return any((dotted(each) or "").split(".")[-1] in PROPERTIES for each in function.decorator_list)


def given_by(node: ast.stmt) -> ast.expr | None:
    """Return what a statement gives to who called its function, or goes through it."""
    if isinstance(node, ast.Return):
        return node.value
    is_yield = isinstance(node, ast.Expr) and isinstance(node.value, ast.Yield)
    return cast("ast.Yield", cast("ast.Expr", node).value).value if is_yield else None
