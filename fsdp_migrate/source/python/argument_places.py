"""Which argument of a function a name is, by its place and name, and what a call gives there."""

from __future__ import annotations

import ast
from typing import Final

from fsdp_migrate.source.python.links import OBJECT


Functions = ast.FunctionDef | ast.AsyncFunctionDef
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


def parameters_of(function: Functions) -> list[ast.arg]:
    """Return the parameters of a function in their order, ``*args`` and ``**kwargs`` left out."""
    given = function.args
    return [*given.posonlyargs, *given.args, *given.kwonlyargs]


def placed_names(function: Functions, *, is_method: bool = False) -> list[str]:
    """Return what the parameters are called that a call gives by place: of a method's, not the object.

    Example:
        >>> (method,) = ast.parse("def fit(self, model, *, steps): ...").body
        >>> placed_names(method), placed_names(method, is_method=True)
        (['self', 'model'], ['model'])
    """
    order = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    return order[1:] if is_method and order[:1] in (["self"], ["cls"]) else order


def named_arguments(call: ast.Call) -> dict[str, ast.expr]:
    """Return what a call is given by name, that of dicts with ``**`` left out."""
    return {each.arg: each.value for each in call.keywords if each.arg is not None}


def every_argument(call: ast.Call) -> list[ast.expr]:
    """Return all that a call is given, by place, by name, and by stars."""
    return [*call.args, *(each.value for each in call.keywords)]


def argument_at(node: ast.AST, name: str, *, is_method: bool) -> tuple[int, str] | None:
    """Return which argument of a function a name is, by its place in a call, or that it is the object."""
    if not isinstance(node, _FUNCTIONS):
        return None
    order = placed_names(node, is_method=is_method)
    if name in order:
        return order.index(name), name
    if name in placed_names(node):
        return OBJECT, name
    return (len(order), name) if name in {arg.arg for arg in node.args.kwonlyargs} else None


def given_at(call: ast.Call, number: int, name: str) -> ast.expr | None:
    """Return what a call gives for an argument, or the object whose method it calls.

    None where that is not seen: what stands behind ``*values`` may be at any place.
    """
    if number == OBJECT:
        return call.func.value if isinstance(call.func, ast.Attribute) else None
    for each in call.keywords:
        if each.arg == name:
            return each.value
    given = call.args[: number + 1]
    is_seen = 0 <= number < len(given) and not any(isinstance(each, ast.Starred) for each in given)
    return given[number] if is_seen else None
