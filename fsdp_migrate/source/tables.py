"""Tables of classes and functions: ``MODELS[name]["cls"](config)`` runs one of a dict's values."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source.project import Place, dotted
from fsdp_migrate.source.project_globals import Globals
from fsdp_migrate.source.values_bound import LAST, Bound, values_bound


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.callers import Callers
    from fsdp_migrate.source.project import Definition, Project


_DEEPEST: Final = 4
_FILLED: Final = (
    r"\b{0}\b(?:\[[^\]\n]*\])+\s*=(?!=)|\b{0}\.(?:update|setdefault|__setitem__|register\w*)\(|\b{0}\s*\|="
    r"|\bglobal [\w, ]*\b{0}\b|\.{0}\s*=(?!=)"
    # Given to something that may fill it.
    r"|(?<!\blen)(?<!\blist)(?<!\bsorted)(?<!\.join)(?<!\btuple)(?<!\bset)\({0}[,)]|=\s*{0}[,)]|,\s*{0}[,)]"
)


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
    filled = re.compile(_FILLED.format(re.escape(name)))
    if not values or any(filled.search(text) for text in project.texts.values() if name in text):
        yield None
        return
    for value in values:
        if isinstance(value.node, ast.Dict) and value.part is None:
            yield value
        elif isinstance(value.node, ast.expr) and value.part is None:
            yield from _tables(project, value.node, value.place, depth + 1)
        else:
            yield None


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
