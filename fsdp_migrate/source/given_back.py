"""Functions that give back what they are given: what a call of one gives is what this call gives it."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from fsdp_migrate.source import catalog
from fsdp_migrate.source.project import Place, dotted
from fsdp_migrate.source.python.argument_places import given_at, placed_names
from fsdp_migrate.source.python.held import ARGUMENT
from fsdp_migrate.source.python.walked import walked
from fsdp_migrate.source.python.wrappers import SAME_MODEL


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.project import Definition, Project


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SCOPES = (*_FUNCTIONS, ast.ClassDef, ast.Lambda)
_DEEPEST = 3
_MAY_SHARD = re.compile(r"accelerat|ddp|distribut|fsdp|parallel|prepare|setup|shard|wrap", re.IGNORECASE)


def given_back(project: Project, definition: Definition, depth: int = 0) -> str | None:
    """Return which argument a function gives back, by place and name, if it does that in any case.

    A function that calls what may shard a model, by its name, is none of these.
    """
    node = definition.node
    if not isinstance(node, _FUNCTIONS) or definition.owner is not None or node.decorator_list:
        return None
    names = placed_names(node)
    inside = list(_inside(node))
    returns = [each for each in inside if isinstance(each, ast.Return) and not _gives_nothing(each)]
    given = {_bare(each.value) for each in returns if each.value is not None}
    name = given.pop() if len(given) == 1 else None
    if name is None or name not in names:
        return None
    if any(isinstance(each, (ast.Yield, ast.YieldFrom)) for each in inside):
        return None
    if any(_MAY_SHARD.search(dotted(each.func) or "") for each in inside if isinstance(each, ast.Call)):
        return None
    place = Place(definition.module, definition.name)
    if not all(_keeps(project, value, name, place, depth) for value in _values(inside, name)):
        return None
    return f"{ARGUMENT}{names.index(name)}:{name}"


def takes_off(definition: Definition) -> bool:
    """Tell whether a function speaks of what FSDP1's wrapper, and DDP's, called the model within."""
    nodes = walked(definition.node)
    asked = {each.attr if isinstance(each, ast.Attribute) else _text_of(each) for each in nodes}
    return not catalog.WRAPPED.isdisjoint(asked)


def _text_of(node: ast.AST) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _bare(value: ast.expr) -> str | None:
    """Return the name that a value is, or is without its wrapper: ``getattr(model, "module", model)``.

    FSDP2 wraps nothing, and of another wrapper's model it is one that is not sharded either.
    """
    if isinstance(value, ast.Name):
        return value.id
    if isinstance(value, ast.Attribute):
        return _bare(value.value) if value.attr in catalog.WRAPPED else None
    if isinstance(value, ast.IfExp):
        names = {_bare(value.body), _bare(value.orelse)}
        return names.pop() if len(names) == 1 else None
    is_read = isinstance(value, ast.Call) and dotted(value.func) == "getattr" and len(value.args) == 3
    if not is_read or not isinstance(value, ast.Call) or not isinstance(value.args[1], ast.Constant):
        return None
    names = {_bare(value.args[0]), _bare(value.args[2])}
    return names.pop() if value.args[1].value in catalog.WRAPPED and len(names) == 1 else None


def _gives_nothing(node: ast.Return) -> bool:
    """Tell whether a ``return`` gives None, which is no other model."""
    return node.value is None or (isinstance(node.value, ast.Constant) and node.value.value is None)


def _inside(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what stands in a function, and not in those within it."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, _SCOPES):
            yield from _inside(child)


def _values(inside: list[ast.AST], name: str) -> Iterator[ast.AST | None]:
    """Yield what a name is bound to; None where that is not seen."""
    values: dict[ast.AST, ast.AST] = {}
    for node in inside:
        if isinstance(node, ast.Assign):
            values.update((target, node.value) for target in node.targets)
    for node in inside:
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store):
            yield values.get(node)


def _keeps(project: Project, value: ast.AST | None, name: str, place: Place, depth: int) -> bool:
    """Tell whether a value is the same model: ``model.to(device)``, or what another such function gives."""
    if isinstance(value, ast.expr) and _bare(value) == name:
        return True
    if not isinstance(value, ast.Call):
        return False
    if isinstance(value.func, ast.Attribute) and value.func.attr in SAME_MODEL:
        return dotted(value.func.value) == name
    text = dotted(value.func)
    inner = project.named(text, place) if text is not None and depth < _DEEPEST else None
    back = given_back(project, inner, depth + 1) if inner is not None else None
    return back is not None and dotted(argument(value, back) or value.func) == name


def argument(call: ast.Call, back: str) -> ast.expr | None:
    """Return what a call gives for the parameter that a function gives back; None where that is not seen."""
    place, _, name = back.removeprefix(ARGUMENT).partition(":")
    return given_at(call, int(place), name)
