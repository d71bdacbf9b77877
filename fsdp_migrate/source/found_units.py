"""Functions that look for a unit of FSDP1's among a model's modules, by its class, and give that."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from fsdp_migrate.source import catalog
from fsdp_migrate.source.project import dotted
from fsdp_migrate.source.python.argument_places import parameters_of
from fsdp_migrate.source.python.walked import walked


if TYPE_CHECKING:
    from fsdp_migrate.source.project import Place, Project


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def is_found(project: Project, function: ast.AST | None, value: ast.expr, place: Place) -> bool:
    """Tell whether a value that a function returns is a unit of FSDP1's that it looked for.

    By ``while not isinstance(parent, FSDP):``, or ``if isinstance(m, FSDP): return m``; no parameter of its
    own, of which calls tell what it is.
    """
    if not isinstance(value, ast.Name) or not isinstance(function, _FUNCTIONS):
        return False
    if any(each.arg == value.id for each in parameters_of(function)):
        return False
    for node in walked(function):
        if isinstance(node, ast.While) and isinstance(node.test, ast.UnaryOp):
            is_end = isinstance(node.test.op, ast.Not) and node.lineno < value.lineno
            breaks = any(isinstance(each, ast.Break) for each in ast.walk(node))
            if is_end and not breaks and _asks(project, node.test.operand, value.id, place):
                return True
        elif isinstance(node, ast.If) and _asks(project, node.test, value.id, place):
            below = {id(each) for line in node.body for each in ast.walk(line)}
            if id(value) in below:
                return True
    return False


def _asks(project: Project, test: ast.expr, name: str, place: Place) -> bool:
    """Tell whether a test is ``isinstance(name, FSDP)``."""
    if not isinstance(test, ast.Call) or dotted(test.func) != "isinstance" or len(test.args) != 2:
        return False
    text = dotted(test.args[1])
    is_its = dotted(test.args[0]) == name and text is not None
    return is_its and catalog.fsdp1_name(project.qualified(text or "", place)) == catalog.FSDP
