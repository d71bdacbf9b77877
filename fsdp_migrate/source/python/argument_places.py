"""Which argument of a function a name is, by its place and name, and what a call gives there."""

from __future__ import annotations

import ast
from typing import Final

from fsdp_migrate.source.python.links import OBJECT


_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


def argument_at(node: ast.AST, name: str, *, is_method: bool) -> tuple[int, str] | None:
    """Return which argument of a function a name is, by its place in a call, or that it is the object."""
    if not isinstance(node, _FUNCTIONS):
        return None
    order = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args)]
    if is_method and order[:1] in (["self"], ["cls"]):
        if name == order[0]:
            return OBJECT, name
        order = order[1:]
    if name in order:
        return order.index(name), name
    return (len(order), name) if name in {arg.arg for arg in node.args.kwonlyargs} else None


def given_at(call: ast.Call, number: int, name: str) -> ast.expr | None:
    """Return what a call gives for an argument, or the object whose method it calls."""
    if number == OBJECT:
        return call.func.value if isinstance(call.func, ast.Attribute) else None
    named = next((each.value for each in call.keywords if each.arg == name), None)
    return named or (call.args[number] if 0 <= number < len(call.args) else None)
