"""The statements of a module by the scope that they stand in, as they are gone through again and again."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from fsdp_migrate.source.never_run import NeverRun
from fsdp_migrate.source.project import Asked, Function, Module, Place, start_of
from fsdp_migrate.source.python.walked import parts_of_one


if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(eq=False)
class Statement:
    """One statement, where it stands, and its calls but those of the statements in it; so with its names."""

    node: ast.stmt
    place: Place
    calls: list[ast.Call]
    named: tuple[tuple[ast.expr, ast.expr], ...]
    """What gets a name within it, ``if (model := wrap(net)) is not None:``, or as a field with its type."""


@dataclass(eq=False)
class Scope:
    """The statements of a function, a class or a module, those of its branches and loops among them."""

    statements: list[Statement] = field(default_factory=list)
    never: list[ast.stmt] = field(default_factory=list)
    """Those that never run, or never with FSDP1: nothing in them is seen."""
    functions: list[tuple[Function, Place]] = field(default_factory=list)
    """The functions that are defined here."""


_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)


def scopes_of(module: Module) -> list[Scope]:
    """Return the scopes of a module, the outer ones first."""
    if not module.scopes:
        never = NeverRun(module.tree, module.imports)
        _collect(module.tree.body, Place(module, ""), None, module.scopes, never)
    return module.scopes


def _collect(
    body: list[ast.stmt], place: Place, scope: Scope | None, found: list[Scope], never: NeverRun
) -> None:
    if scope is None:
        scope = Scope()
        found.append(scope)
    place = replace(place, blocks=(*place.blocks, id(body)))
    # The lines of a notebook may be run one by one.
    left = never.below_leaving(body) if body is not place.module.tree.body else []
    scope.never += left
    for node in body[: len(body) - len(left)]:
        here = replace(place, start=start_of(node))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if not isinstance(node, ast.ClassDef):
                scope.functions.append((node, place))
            name = f"{place.scope}.{node.name}" if place.scope else node.name
            _collect(node.body, Place(place.module, name), None, found, never)
            continue
        if isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            here = replace(here, loops=(*place.loops, node))
        if isinstance(node, ast.With) and any("state_dict_type" in ast.dump(item) for item in node.items):
            here = replace(here, is_typed=True)
        parts = list(parts_of_one(node))
        calls = [each for each in parts if isinstance(each, ast.Call)]
        kinds = (ast.AnnAssign, ast.NamedExpr)
        made = [each for each in (*parts, node) if isinstance(each, kinds)]
        named = ((each.target, each.value) for each in made if each.value is not None)
        scope.statements.append(Statement(node, here, calls, tuple(named)))
        for block, its in _blocks(node, here, never, scope):
            _collect(block, its, scope, found, never)
        if isinstance(node, ast.If) and not node.orelse and _leaves(node.body):
            place = _chosen(place, node, "orelse")


def _blocks(
    node: ast.stmt, here: Place, never: NeverRun, scope: Scope
) -> Iterator[tuple[list[ast.stmt], Place]]:
    """Yield the blocks of a statement that may run, and note the others."""
    side, dead = never.side(node), never.handlers(node) if isinstance(node, ast.Try) else []
    for inner in ("body", "orelse", "finalbody"):
        if inner == side:
            scope.never += getattr(node, inner)
        else:
            yield getattr(node, inner, []), _chosen(here, node, inner)
    for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        if part in dead:
            scope.never += part.body
        else:
            yield part.body, here


def _leaves(body: list[ast.stmt]) -> bool:
    """Tell whether a block ends by leaving the block around it, in a context too."""
    last = body[-1]
    inner = last
    while isinstance(inner, ast.With):
        inner = inner.body[-1]
    # A context may take up what is raised in it.
    return isinstance(inner, _LEAVES) and (inner is last or not isinstance(inner, ast.Raise))


def _chosen(place: Place, node: ast.stmt, inner: str) -> Place:
    """Return the place of a branch, with what the choice of it says."""
    if not isinstance(node, ast.If):
        return place
    asked = Asked(node.test, inner == "body", node, is_in_loop=bool(place.loops))
    return replace(place, asked=(*place.asked, asked))
