"""What the nodes of a tree of the standard library bind: names, with what is known of their values."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source.python.walked import children_of


if TYPE_CHECKING:
    from collections.abc import Iterator


STAR: Final = "*"
"""The name of what ``import *`` binds: any name."""
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS: Final = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_LISTS: Final = (ast.Tuple, ast.List)
_SCOPES: Final = (*_FUNCTIONS, *_COMPREHENSIONS, ast.ClassDef)


@dataclass(frozen=True, eq=False)
class Bound:
    """One place that gives a name a value, or takes it away."""

    name: str
    value: object
    """True for what is imported, else the constant that is assigned, or ``...``."""
    node: ast.AST
    """The statement, the pattern, the parameter or the name that binds it."""
    is_inner: bool
    """Whether it stands in a function, a class or a comprehension."""

    @property
    def line(self) -> int:
        """The line that it stands in."""
        return getattr(self.node, "lineno", 0)


def names_bound(tree: ast.AST) -> Iterator[Bound]:
    r"""Yield what a tree binds, of whatever scope.

    Example:
        >>> tree = ast.parse("import os, sys as system\nwith a as b:\n    c = None")
        >>> sorted((each.name, each.value) for each in names_bound(tree))
        [('b', Ellipsis), ('c', None), ('os', True), ('system', True)]
    """
    todo = [(tree, False)]
    while todo:
        node, is_inner = todo.pop()
        yield from (Bound(name, value, node, is_inner) for name, value in _bound_by(node))
        is_within = is_inner or isinstance(node, _SCOPES)
        # What an assignment binds was said with its value.
        said = node.targets if isinstance(node, ast.Assign) else ()
        said = [node.target] if isinstance(node, ast.AnnAssign) else said
        todo += [(each, is_within) for each in children_of(node) if each not in said]


def _bound_by(node: ast.AST) -> Iterator[tuple[str, object]]:
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from ((alias.asname or alias.name.split(".")[0], True) for alias in node.names)
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _assigned(target, node.value)
    elif isinstance(node, ast.AnnAssign):
        yield from () if node.value is None else _assigned(node.target, node.value)
    elif isinstance(node, ast.Name):
        yield from () if isinstance(node.ctx, ast.Load) else ((node.id, ...),)
    else:
        name = _name_of(node)
        yield from () if name is None else ((name, ...),)


def _name_of(node: ast.AST) -> str | None:
    """Return the name that a node binds which has it as a text."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler)):
        return node.name
    if isinstance(node, (ast.MatchAs, ast.MatchStar)):
        return node.name
    if isinstance(node, ast.MatchMapping):
        return node.rest
    return node.arg if isinstance(node, ast.arg) else None


def _assigned(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, object]]:
    """Yield the names of an assignment's target, each with its own part of the value."""
    if isinstance(target, ast.Name):
        yield target.id, value.value if isinstance(value, ast.Constant) else ...
        return
    if isinstance(target, _LISTS) and isinstance(value, _LISTS) and len(target.elts) == len(value.elts):
        for one, other in zip(target.elts, value.elts, strict=True):
            yield from _assigned(one, other)
        return
    for node in ast.walk(target):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, ...
