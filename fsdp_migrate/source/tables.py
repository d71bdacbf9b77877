"""Tables of classes and functions: ``MODELS[name]["cls"](config)`` runs one of a dict's values."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source.project import Place, dotted
from fsdp_migrate.source.project_globals import Globals
from fsdp_migrate.source.python.walked import walked
from fsdp_migrate.source.values_bound import Bound, values_bound


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.callers import Callers
    from fsdp_migrate.source.project import Definition, Project


_DEEPEST: Final = 4
_LAST: Final = 10**9
_FILLS: Final = frozenset({"__setitem__", "setdefault", "update"})
# What is given a table and only reads it.
_READS: Final = frozenset({"join", "len", "list", "set", "sorted", "tuple"})


def in_table(project: Project, callers: Callers, func: ast.expr, place: Place) -> list[Definition] | None:
    """Return what of the project a call may run that picks it from a dict; None where that is not seen.

    Args:
        project: The files.
        callers: Answers what names stand for.
        func: What is called.
        place: Where.
    """
    found: list[Definition] = []
    for value in _tables(project, func, place, 0):
        leaves = _leaves(value.node) if value is not None else None
        if value is None or not leaves:
            return None
        for leaf in leaves:
            made = callers.stands_for(dotted(leaf) or "?", value.place)
            if made is None:
                return None
            found.append(made)
    return found or None


def _tables(project: Project, node: ast.expr, place: Place, depth: int) -> Iterator[Bound | None]:
    """Yield the dicts from which an expression picks; None for what is no dict in sight, or grows."""
    root = _root(node)
    if root is None or root is node or depth > _DEEPEST or not isinstance(root, ast.Name):
        yield None
        return
    values, name = values_bound(place, root.id), root.id
    origin = Globals(project).origin(root.id, place) if not values else None
    if origin is not None:
        path, name = project.split(origin[0])[0], origin[1]
        module = project.module(path)
        values = values_bound(Place(module, "", line=_LAST), name) if module is not None else None
    if not values or _is_filled(project, name):
        yield None
        return
    for value in values:
        if isinstance(value.node, ast.Dict) and value.part is None:
            yield value
        elif isinstance(value.node, ast.expr) and value.part is None:
            yield from _tables(project, value.node, value.place, depth + 1)
        else:
            yield None


def _is_filled(project: Project, name: str) -> bool:
    """Tell whether a file puts something into a table, by its name, or hands it to what may."""
    for path in (path for path, text in project.texts.items() if name in text):
        module = project.module(path)
        if module is None or any(_fills(node, name) for node in walked(module.tree)):
            return True
    return False


def _fills(node: ast.AST, name: str) -> bool:
    """Tell whether a node sets an item of a table or the table itself anew, or hands it on."""
    if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(_is_its(_base(each), name) for each in targets if isinstance(each, ast.Subscript)):
            return True
        if isinstance(node, ast.AugAssign) and _is_its(node.target, name):
            return True
        return any(isinstance(each, ast.Attribute) and each.attr == name for each in targets)
    if isinstance(node, ast.Global):
        return name in node.names
    if not isinstance(node, ast.Call):
        return False
    func = node.func
    if isinstance(func, ast.Attribute) and _is_its(func.value, name):
        return func.attr in _FILLS or func.attr.startswith("register")
    last = func.attr if isinstance(func, ast.Attribute) else dotted(func)
    if last in _READS:
        return False
    given = [*node.args, *(each.value for each in node.keywords if each.arg is not None)]
    return any(_is_its(each, name) for each in given)


def _is_its(node: ast.expr, name: str) -> bool:
    return (isinstance(node, ast.Name) and node.id == name) or (
        isinstance(node, ast.Attribute) and node.attr == name
    )


def _base(node: ast.expr) -> ast.expr:
    while isinstance(node, ast.Subscript):
        node = node.value
    return node


def _root(node: ast.expr) -> ast.expr | None:
    """Return the table of ``TABLE[name]["cls"]`` and of ``TABLE.get(name)``."""
    while True:
        if isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            if len(node.args) != 1:
                return None  # what it gives where the name is not there
            node = node.func.value
        else:
            return node


def _leaves(node: ast.AST) -> list[ast.expr] | None:
    """Return the names among a dict's values, of dicts in it too; None where one is made there."""
    if isinstance(node, ast.Dict):
        parts: list[ast.AST] = [*node.values]
        if any(key is None for key in node.keys):  # `**others`
            return None
    elif isinstance(node, (ast.List, ast.Tuple)):
        parts = [*node.elts]
    elif isinstance(node, (ast.Attribute, ast.Name)):
        return [node]
    else:
        return [] if isinstance(node, ast.Constant) else None
    inner = [_leaves(each) for each in parts]
    return None if None in inner else [leaf for each in inner for leaf in each or ()]
