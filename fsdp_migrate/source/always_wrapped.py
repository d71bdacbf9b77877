"""Functions of a project whose every return gives FSDP1's wrapper, whatever they are given."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source import catalog
from fsdp_migrate.source.project import Place, dotted
from fsdp_migrate.source.python.walked import walked


if TYPE_CHECKING:
    from fsdp_migrate.source.project import Definition, Project


_DEEPEST: Final = 3
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def always_makes(project: Project, func: ast.expr, place: Place, depth: int = 0) -> bool:
    """Tell whether calling something wraps a model in any case: the class, or what always returns it."""
    text = dotted(func) or ""
    if catalog.fsdp1_name(project.qualified(text, Place(place.module, ""))) == catalog.FSDP:
        return True
    is_own = text.startswith("self.")
    called = project.own(text.removeprefix("self."), place) if is_own else project.named(text, place)
    return called is not None and depth < _DEEPEST and always_wraps(project, called, depth + 1)


def always_wraps(project: Project, function: Definition, depth: int = 0) -> bool:
    """Tell whether each return of a function gives what wraps a model in any case."""
    if not isinstance(function.node, _FUNCTIONS):
        return False
    inner = [each for each in walked(function.node) if isinstance(each, (*_FUNCTIONS, ast.Lambda))]
    own = {below for each in inner if each is not function.node for below in ast.walk(each)}
    returns = (each for each in walked(function.node) if isinstance(each, ast.Return) and each not in own)
    values = [each.value for each in returns]
    place = Place(function.module, function.name)
    return bool(values) and all(
        isinstance(each, ast.Call) and always_makes(project, each.func, place, depth) for each in values
    )


def is_replaced(project: Project, node: ast.stmt, call: ast.Call, text: str, function: Definition) -> bool:
    """Tell whether a model's name is given anew what wraps it in any case: ``model = wrap_towers(model)``."""
    targets = node.targets if isinstance(node, ast.Assign) and node.value is call else []
    return text in map(dotted, targets) and always_wraps(project, function)
