"""Where a list of a project's files is taken for one of parameters: it is clipped, or gone through."""

from __future__ import annotations

import ast
import re
from typing import Final

from fsdp_migrate.source.project import dotted, last_name


COUNTS: Final = frozenset({"bool", "len", "type"})
_TAKES: Final = re.compile(r"^clip_grad|norm|^_foreach_|^unscale|^zip$")
_SAME: Final = frozenset({"enumerate", "items", "list", "tuple", "values"})


def above_of(function: ast.AST) -> dict[int, ast.AST]:
    """Return what each part of a function stands right in, by its id."""
    return {id(child): node for node in ast.walk(function) for child in ast.iter_child_nodes(node)}


def is_taken(function: ast.AST, name: str, *, below: int = 0) -> bool:
    """Tell whether a function takes a name, or ``self.name``, for parameters, below a line."""
    above = above_of(function)
    nodes = (each for each in ast.walk(function) if isinstance(each, (ast.Name, ast.Attribute)))
    return any(dotted(each) == name and each.lineno > below and is_taken_at(each, above) for each in nodes)


def is_taken_at(node: ast.AST, above: dict[int, ast.AST]) -> bool:
    """Tell whether a list is taken for parameters at a place, also by ``list(x)``, or with others."""
    around = above.get(id(node))
    while around is not None:
        if isinstance(around, (ast.For, ast.comprehension)):
            return around.iter is node
        name = last_name(around.func) if isinstance(around, ast.Call) else ""
        if name and _TAKES.search(name):
            return True
        is_same = name in _SAME or (isinstance(around, ast.Attribute) and around.attr in _SAME)
        if not is_same and not isinstance(around, (ast.BinOp, ast.List, ast.Starred)):
            return False
        node, around = around, above.get(id(around))
    return False
