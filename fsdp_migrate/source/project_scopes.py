"""The statements of a module by the scope that they stand in, as they are gone through again and again."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from fsdp_migrate.source.project import Asked, Function, Module, Place, calls_of


if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(eq=False)
class Statement:
    """One statement, where it stands, and its calls but those of the statements in it."""

    node: ast.stmt
    place: Place
    calls: list[ast.Call]


@dataclass(eq=False)
class Scope:
    """The statements of a function, a class or a module, those of its branches and loops among them."""

    statements: list[Statement] = field(default_factory=list)
    functions: list[tuple[Function, Place]] = field(default_factory=list)
    """The functions that are defined here."""


_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)


def scopes_of(module: Module) -> list[Scope]:
    """Return the scopes of a module, the outer ones first."""
    if not module.scopes:
        _collect(module.tree.body, Place(module, ""), None, module.scopes)
    return module.scopes


def _collect(body: Iterable[ast.stmt], place: Place, scope: Scope | None, found: list[Scope]) -> None:
    if scope is None:
        scope = Scope()
        found.append(scope)
    place = replace(place, blocks=(*place.blocks, id(body)))
    for node in body:
        here = replace(place, line=node.lineno)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if not isinstance(node, ast.ClassDef):
                scope.functions.append((node, place))
            name = f"{place.scope}.{node.name}" if place.scope else node.name
            _collect(node.body, Place(place.module, name), None, found)
            continue
        if isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            here = replace(here, loops=(*place.loops, node))
        if isinstance(node, ast.With) and any("state_dict_type" in ast.dump(item) for item in node.items):
            here = replace(here, is_typed=True)
        scope.statements.append(Statement(node, here, list(calls_of(node))))
        for inner in ("body", "orelse", "finalbody"):
            _collect(getattr(node, inner, ()), _chosen(here, node, inner), scope, found)
        if isinstance(node, ast.If) and not node.orelse and isinstance(node.body[-1], _LEAVES):
            place = _chosen(place, node, "orelse")
        for inner_body in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
            _collect(inner_body.body, here, scope, found)


def _chosen(place: Place, node: ast.stmt, inner: str) -> Place:
    """Return the place of a branch, with what the choice of it says."""
    if not isinstance(node, ast.If):
        return place
    asked = Asked(node.test, inner == "body", node, is_in_loop=bool(place.loops))
    return replace(place, asked=(*place.asked, asked))
