"""Functions of a project that are given a class, and ask whether something is of it: ``wraps(model, FSDP)``.

What such a call asks is what ``isinstance(model, FSDP)`` asks, and nothing is made of the class there.
"""

from __future__ import annotations

import ast
import textwrap
from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.python.argument_places import argument_at, parameters_of
from fsdp_migrate.source.python.nodes import argument_of
from fsdp_migrate.source.python.written_names import written_names


if TYPE_CHECKING:
    from collections.abc import Mapping

    from fsdp_migrate.source.python.text import Source


Asked = frozenset[tuple[int, str]]
"""Arguments, by place and name, of whose class a function asks whether something is of it."""
_ASKS: Final = frozenset({"isinstance", "issubclass"})
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


def asked_parameters(function: ast.AST) -> Asked:
    """Return the parameters of a function that it asks for as classes, and does nothing else with.

    Example:
        >>> (function,) = ast.parse("def is_one(x, kinds): return isinstance(x, kinds)").body
        >>> asked_parameters(function)
        frozenset({(1, 'kinds')})
    """
    if not isinstance(function, _FUNCTIONS):
        return frozenset()
    is_method = function.args.args[:1] != [] and function.args.args[0].arg in {"self", "cls"}
    names = (each.arg for each in parameters_of(function) if _is_only_asked(function, each.arg))
    places = (argument_at(function, name, is_method=is_method) for name in names)
    return frozenset(each for each in places if each is not None)


def _is_only_asked(function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> bool:
    asked: set[ast.AST] = set()
    handed: set[ast.AST] = set()
    for call in (each for each in ast.walk(function) if isinstance(each, ast.Call)):
        called = ast.unparse(call.func)
        if called in _ASKS and len(call.args) > 1:
            asked.update(ast.walk(call.args[1]))
        elif called.rpartition(".")[2] == function.name:  # by itself, for each part: `wraps(child, kinds)`
            handed.update((*call.args, *(each.value for each in call.keywords)))
    body = (each for line in function.body for each in ast.walk(line))
    uses = [each for each in body if isinstance(each, ast.Name) and each.id == name]
    return any(each in asked for each in uses) and all(
        isinstance(each.ctx, ast.Load) and (each in asked or each in handed) for each in uses
    )


def is_asked_by_function(source: Source, call: cst.Call, arg: cst.CSTNode) -> bool:
    """Tell whether a call gives an argument to a function that only asks whether something is of it."""
    if not isinstance(arg, cst.Arg) or arg.star:
        return False
    functions = source.models.guards.functions(call.func)
    told: Mapping[str, Asked] = source.links.asking
    known = [asked_by(source, each) for each in functions] or [
        told[each] for each in written_names(source.index, call.func) if each in told
    ]
    return bool(known) and all(
        any(argument_of(call, place, {name}) is arg.value for place, name in asked) for asked in known
    )


def is_asked_by_default(source: Source, param: cst.CSTNode) -> bool:
    """Tell whether it is a parameter that its function only asks for: ``def wraps(m, kinds=FSDP)``."""
    if not isinstance(param, cst.Param):
        return False
    owner = next((a for a in source.index.ancestors(param) if isinstance(a, cst.FunctionDef)), None)
    asked = asked_by(source, owner) if owner is not None else ()
    return any(name == param.name.value for _, name in asked)


def asked_by(source: Source, function: cst.CSTNode) -> Asked:
    """Return the same of a function of the source itself."""
    written = textwrap.dedent(source.module.code_for_node(function).lstrip("\n"))
    try:
        (parsed,) = ast.parse(written).body
    except (SyntaxError, ValueError):
        return frozenset()
    return asked_parameters(parsed)
