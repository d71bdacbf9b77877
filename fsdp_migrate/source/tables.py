"""Tables of classes and functions: ``MODELS[name]["cls"](config)`` runs one of a dict's values."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from fsdp_migrate.source.project import Place, dotted
from fsdp_migrate.source.project_globals import Globals
from fsdp_migrate.source.python.walked import walked
from fsdp_migrate.source.values_bound import LAST, Bound, values_bound


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.callers import Callers
    from fsdp_migrate.source.project import Definition, Project


_DEEPEST: Final = 4
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
        values = values_bound(Place(module, "", LAST), name) if module is not None else None
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


_FILLED: Final[WeakKeyDictionary[ast.AST, frozenset[str]]] = WeakKeyDictionary()


def _is_filled(project: Project, name: str) -> bool:
    """Tell whether a file puts something into a table, by its name, or hands it to what may."""
    for path in (path for path, text in project.texts.items() if name in text):
        module = project.module(path)
        if module is None:
            return True
        if module.tree not in _FILLED:
            _FILLED[module.tree] = frozenset(each for node in walked(module.tree) for each in _fills(node))
        if name in _FILLED[module.tree]:
            return True
    return False


def _fills(node: ast.AST) -> Iterator[str]:
    """Yield the names of what a node sets an item of, sets anew where it is another's, or hands on."""
    if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
        for each in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(each, ast.Subscript):
                yield from _name_of(_base(each))
            elif isinstance(each, ast.Attribute) or isinstance(node, ast.AugAssign):
                yield from _name_of(each)
    elif isinstance(node, ast.Global):
        yield from node.names
    elif isinstance(node, ast.Call):
        func = node.func
        last = func.attr if isinstance(func, ast.Attribute) else dotted(func)
        if isinstance(func, ast.Attribute) and (last in _FILLS or func.attr.startswith("register")):
            yield from _name_of(func.value)
        if last not in _READS:
            for each in (*node.args, *(word.value for word in node.keywords if word.arg is not None)):
                yield from _name_of(each)


def _name_of(node: ast.expr) -> Iterator[str]:
    """Yield what a table is called: the last word of a name of another file's."""
    if isinstance(node, (ast.Attribute, ast.Name)):
        yield node.attr if isinstance(node, ast.Attribute) else node.id


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
