"""What a name may hold at a place of a project's file: each value that is given to it before."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, NamedTuple

from fsdp_migrate.source.project import Place, start_of
from fsdp_migrate.source.project_scopes import scopes_of
from fsdp_migrate.source.python.argument_places import parameters_of
from fsdp_migrate.source.python.walked import parts_of_one


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.project import Module
    from fsdp_migrate.source.project_scopes import Statement


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LAST = (10**9, 0)


class Bound(NamedTuple):
    """One value: an expression, or the parameter of a function; and which part of it, as ``a, b = x``."""

    node: ast.expr | ast.arg
    place: Place
    part: int | None = None


def values_bound(place: Place, name: str) -> list[Bound] | None:
    """Return what a name may hold at a place; None where something unseen may give it a value."""
    scope, use = place.scope, place
    while True:
        node = place.module.definitions[scope].node if scope in place.module.definitions else None
        if not isinstance(node, ast.ClassDef):
            found = _in_scope(place.module, scope, node, name, use)
            if found is None or found:
                return found
        if not scope:
            return []
        scope = scope.rpartition(".")[0]
        use = Place(place.module, scope, LAST)


def every_value(place: Place, name: str) -> list[Bound]:
    """Return each value that a name is seen to be given, by the nearest scope around that gives it one."""
    scope = place.scope
    while True:
        found = [
            each for its in statements_in(place.module, scope) for each in _given(its.node, name, its.place)
        ]
        if found or not scope:
            return [each for each in found if each is not None]
        scope = scope.rpartition(".")[0]


def _in_scope(module: Module, scope: str, node: ast.AST | None, name: str, use: Place) -> list[Bound] | None:
    found: list[Bound] = []
    here = Place(module, scope)
    if isinstance(node, _FUNCTIONS):
        args = node.args
        if name in {each.arg for each in (args.vararg, args.kwarg) if each is not None}:
            return None
        found = [Bound(each, here) for each in parameters_of(node) if each.arg == name]
    for statement in statements_in(module, scope):
        is_above = start_of(statement.node) < use.start
        later = not set(map(id, statement.place.loops)).isdisjoint(map(id, use.loops))
        if not is_above and not later:
            continue
        those = list(_given(statement.node, name, statement.place))
        if None in those:
            return None
        values = [each for each in those if each is not None]
        always = statement.place.blocks == use.blocks[: len(statement.place.blocks)] and is_above
        found = values if values and always and not later else [*found, *values]
    inner = module.definitions.get(f"{scope}.{name}" if scope else name)
    return None if inner is not None and found else found


def statements_in(module: Module, scope: str) -> Iterator[Statement]:
    """Yield the statements of a function, a class or a file, by its name there."""
    for each in scopes_of(module):
        if each.statements and each.statements[0].place.scope == scope:
            yield from each.statements


def _given(node: ast.stmt, name: str, place: Place) -> Iterator[Bound | None]:
    """Yield the values that one statement gives to a name; None for what is not seen."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _by_target(target, node.value, name, place)
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        yield from _by_target(node.target, node.value, name, place)
    elif isinstance(node, (ast.Global, ast.Nonlocal)):
        if name in node.names:
            yield None
    elif any(_names(each, name) for each in _targets(node)):
        yield None
    if any(_is_named_in(each, name) for each in parts_of_one(node)):
        yield None


def _targets(node: ast.stmt) -> list[ast.AST]:
    """Return what a loop, a context or a match binds."""
    if isinstance(node, (ast.For, ast.AsyncFor, ast.AugAssign)):
        return [node.target]
    if isinstance(node, (ast.With, ast.AsyncWith)):
        return [each.optional_vars for each in node.items if each.optional_vars is not None]
    return [case.pattern for case in node.cases] if isinstance(node, ast.Match) else []


def _is_named_in(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.NamedExpr) and node.target.id == name


def _by_target(target: ast.expr, value: ast.expr, name: str, place: Place) -> Iterator[Bound | None]:
    if isinstance(target, ast.Name):
        if target.id == name:
            yield Bound(value, place)
        return
    if not isinstance(target, (ast.Tuple, ast.List)):
        return
    for count, part in enumerate(target.elts):
        if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts):
            yield from _by_target(part, value.elts[count], name, place)
        elif isinstance(part, ast.Name) and part.id == name:
            yield Bound(value, place, count)
        elif _names(part, name):
            yield None


def _names(node: ast.AST, name: str) -> bool:
    """Tell whether a target binds a name: of ``x.y`` and ``x[0]`` the parts are only read."""
    if isinstance(node, (ast.Attribute, ast.Subscript)):
        return False
    is_it = isinstance(node, ast.Name) and node.id == name
    is_matched = isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name == name
    return is_it or is_matched or any(_names(each, name) for each in ast.iter_child_nodes(node))


def bound_within(call: ast.AST) -> set[str]:
    """Return the names that comprehensions and lambdas of a statement bind: another thing than outside."""
    found: set[str] = set()
    for each in (call, *ast.walk(call)):
        if isinstance(each, ast.comprehension):
            found |= {name.id for name in ast.walk(each.target) if isinstance(name, ast.Name)}
        elif isinstance(each, ast.Lambda):
            found |= {arg.arg for arg in ast.walk(each.args) if isinstance(arg, ast.arg)}
    return found
