"""What literals and comprehensions of a project's files hold, and what targets and subscripts take of it."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from fsdp_migrate.source.project import dotted
from fsdp_migrate.source.python.held import (
    EACH,
    ITEM,
    LONGEST,
    VALUE,
    alike,
    attribute,
    held,
    item,
    of_dict,
    put,
    taken,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Kinds = Callable[[ast.expr], set[str]]


def _giver(node: ast.expr) -> str | None:
    """Return the method that gives an expression, nothing for a name, and None for anything else."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr
    return "" if isinstance(node, ast.Name) else None


def held_by(kinds: Kinds, node: ast.expr) -> set[str]:
    """Return what a literal or a comprehension holds."""
    found: set[str] = set()
    if isinstance(node, (ast.Tuple, ast.List)) and len(node.elts) <= LONGEST:
        is_placed = True
        for number, each in enumerate(node.elts):
            if isinstance(each, ast.Starred):
                is_placed = False
                found |= put(EACH, taken(EACH, kinds(each.value)))
            else:
                found |= put(str(number) if is_placed else EACH, kinds(each))
    elif isinstance(node, ast.Dict) and len(node.values) <= LONGEST:
        for key, value in zip(node.keys, node.values, strict=True):
            name = text_of(key)
            inside = kinds(value)
            found |= held(inside) if key is None else put(VALUE if name is None else item(name), inside)
    elif isinstance(node, (ast.ListComp, ast.GeneratorExp, ast.SetComp)):
        is_of_parameters = _gives_parameters(kinds, node.generators[0], node.elt)
        return (
            {"params"}
            if is_of_parameters
            else put(EACH, alike(_comprehended(kinds, node, node.elt), _giver(node.elt)))
        )
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return of_dict(kinds(node.left) | kinds(node.right))  # `state | {"model": model}`
    elif isinstance(node, ast.DictComp):
        return put(VALUE, alike(_comprehended(kinds, node, node.value), _giver(node.value)))
    return found


def _gives_parameters(kinds: Kinds, loop: ast.comprehension, gives: ast.expr) -> bool:
    """Tell whether a comprehension gives what it goes through, parameters: not their names."""
    last = loop.target.elts[-1] if isinstance(loop.target, ast.Tuple) else loop.target
    parts = gives.elts if isinstance(gives, ast.Tuple) else [gives]
    is_each = isinstance(last, ast.Name) and any(dotted(each) == last.id for each in parts)
    return is_each and "params" in kinds(loop.iter)


def _comprehended(
    kinds: Kinds,
    node: ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp,
    gives: ast.expr,
) -> set[str]:
    first = node.generators[0]
    for target, inside in kinds_of_targets(first.target, taken(EACH, kinds(first.iter))):
        if dotted(target) == dotted(gives) and isinstance(gives, ast.Name):
            return inside
    return kinds(gives)


def step_of(node: ast.Subscript) -> str:
    """Return the step that a subscript takes: to an item by its name, by its place, or to any."""
    value = node.slice.value if isinstance(node.slice, ast.Constant) else None
    if isinstance(value, str):
        return item(value)
    return str(value) if type(value) is int else ITEM


def pairs(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """Return what is assigned to what: of ``self.a, self.b = a, b`` each by itself."""
    if isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, (ast.Tuple, ast.List)):
        is_starred = any(isinstance(each, ast.Starred) for each in (*target.elts, *value.elts))
        if len(target.elts) == len(value.elts) and not is_starred:
            return list(zip(target.elts, value.elts, strict=True))
    return [(target, value)]


def rooted(where: ast.expr, kinds: set[str]) -> tuple[ast.expr, set[str]]:
    """Return the name in which something is put, and all that it holds then, step by step.

    ``models["a"]["b"] = model`` and ``models.setdefault("a", []).append(model)`` put it into ``models``.
    """
    while True:
        if isinstance(where, ast.Subscript):
            step = step_of(where)
            where, kinds = where.value, put(ITEM if step.isdigit() else step, kinds)
        elif isinstance(where, ast.Call) and isinstance(where.func, ast.Attribute):
            if where.func.attr not in {"get", "setdefault"} or not where.args:
                return where, kinds
            name = text_of(where.args[0])
            where, kinds = where.func.value, put(VALUE if name is None else item(name), kinds)
        else:
            return where, kinds


def kinds_of_targets(target: ast.expr, kinds: set[str]) -> Iterator[tuple[ast.expr, set[str]]]:
    """Yield the names that a target binds, with what each is given: ``(name, (model, optimizer))``."""
    if isinstance(target, (ast.Tuple, ast.List)):
        for place, element in enumerate(target.elts):
            if isinstance(element, ast.Starred):
                yield from kinds_of_targets(element.value, put(EACH, taken(EACH, kinds)))
            else:
                yield from kinds_of_targets(element, taken(str(place), kinds))
    else:
        yield target, kinds


def bound_by_match(node: ast.Match, kinds: set[str]) -> Iterator[tuple[str, set[str]]]:
    """Yield the names that the cases of a ``match`` bind, and what each is of what is matched."""
    for case in node.cases if kinds else ():
        yield from _bound(case.pattern, kinds)


def _bound(pattern: ast.pattern, kinds: set[str]) -> Iterator[tuple[str, set[str]]]:
    inner: list[tuple[ast.pattern, set[str]]] = []
    if isinstance(pattern, ast.MatchAs):
        inner = [(pattern.pattern, kinds)] if pattern.pattern is not None else []
        yield from ((pattern.name, kinds),) if pattern.name is not None else ()
    elif isinstance(pattern, ast.MatchStar):
        yield from ((pattern.name, put(EACH, taken(EACH, kinds))),) if pattern.name is not None else ()
    elif isinstance(pattern, ast.MatchOr):
        inner = [(each, kinds) for each in pattern.patterns]
    elif isinstance(pattern, ast.MatchSequence):
        for place, each in enumerate(pattern.patterns):
            inner.append((each, kinds if isinstance(each, ast.MatchStar) else taken(str(place), kinds)))
    elif isinstance(pattern, ast.MatchMapping):
        named = zip(map(text_of, pattern.keys), pattern.patterns, strict=True)
        inner = [(each, taken(item(name), kinds)) for name, each in named if name is not None]
    elif isinstance(pattern, ast.MatchClass):
        parts = zip(pattern.kwd_attrs, pattern.kwd_patterns, strict=True)
        inner = [(each, taken(attribute(name), kinds)) for name, each in parts]
    for each, part in inner:
        yield from _bound(each, part)


def text_of(node: ast.expr | None) -> str | None:
    """Return the text that an expression is."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
