"""Attributes that are read and set by their names, those that are methods, and what statements give."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, NamedTuple

from fsdp_migrate.source.project import dotted, last_name
from fsdp_migrate.source.python.argument_places import named_arguments
from fsdp_migrate.source.python.by_name import PROPERTIES, SETS


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.project import Function, Place


class Named(NamedTuple):
    """An attribute by its whole name, and the default, or what it is set to."""

    text: str
    owner: ast.expr
    name: str
    value: ast.expr | None


def read_by_name(call: ast.Call) -> Named | None:
    """Return what ``getattr(model, "module", model)`` reads."""
    is_read = isinstance(call.func, ast.Name) and call.func.id == "getattr" and 2 <= len(call.args) <= 3
    return _named(call) if is_read else None


def set_by_name(call: ast.Call) -> Named | None:
    """Return what ``setattr(self, "model", model)`` sets."""
    is_set = len(call.args) == 3 and dotted(call.func) in SETS
    return _named(call) if is_set else None


def set_by_names(call: ast.Call, place: Place) -> Iterator[Named]:
    """Yield what a call sets by names that are written: one, those of a loop, or of ``__dict__``."""
    one = set_by_name(call)
    if one is not None:
        yield one
    elif dotted(call.func) in SETS and len(call.args) == 3:
        start = dotted(call.args[0])
        for text in texts_gone_through(call.args[1], place) if start is not None else ():
            yield Named(f"{start}.{text}", call.args[0], text, call.args[2])
    elif isinstance(call.func, ast.Attribute) and call.func.attr == "update":
        owner = owner_of_dict(call.func.value)
        start = dotted(owner) if owner is not None else None
        for text, value in _items(call) if start is not None else ():
            if text.isidentifier() and owner is not None:
                yield Named(f"{start}.{text}", owner, text, value)


def owner_of_dict(node: ast.expr) -> ast.expr | None:
    """Return the object whose attributes an expression holds: ``self.__dict__``, ``vars(self)``."""
    if isinstance(node, ast.Attribute) and node.attr == "__dict__":
        return node.value
    is_vars = isinstance(node, ast.Call) and dotted(node.func) == "vars" and len(node.args) == 1
    return node.args[0] if is_vars and isinstance(node, ast.Call) else None


def _items(call: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names that ``update(model=model)``, or ``update({"model": model})``, puts in."""
    yield from named_arguments(call).items()
    given = call.args[0] if len(call.args) == 1 else None
    for key, value in zip(given.keys, given.values, strict=True) if isinstance(given, ast.Dict) else ():
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            yield key.value, value


def texts_gone_through(name: ast.expr, place: Place) -> list[str]:
    """Return the texts that a loop around goes through whose target a name is, or a part of it."""
    for loop in reversed(place.loops) if isinstance(name, ast.Name) else ():
        if isinstance(loop, (ast.For, ast.AsyncFor)):
            parts = loop.target.elts if isinstance(loop.target, ast.Tuple) else []
            number = next((n for n, each in enumerate(parts) if dotted(each) == dotted(name)), None)
            if number is None and dotted(loop.target) != dotted(name):
                continue
            texts = [_part(each, number) for each in _elements(loop.iter, place)]
            return [each for each in texts if isinstance(each, str) and each.isidentifier()]
    return []


def _part(node: ast.expr, number: int | None) -> object:
    inner = node.elts if isinstance(node, (ast.List, ast.Tuple)) else []
    one = node if number is None else (inner[number] if len(inner) > number else None)
    return one.value if isinstance(one, ast.Constant) else None


def _elements(over: ast.expr, place: Place) -> list[ast.expr]:
    """Return what is gone through, where it is written out: there, at the top level, or in a class."""
    text = dotted(over)
    if text is not None:
        start, _, name = text.rpartition(".")
        found = place.module.definitions.get(place.scope.partition(".")[0]) if start else None
        bodies = [found.node.body if found is not None else []] if start else [place.module.tree.body]
        is_own = start in {"", "cls", "self"}
        made = [
            each.value
            for body in (bodies if is_own else [])
            for each in body
            if isinstance(each, (ast.AnnAssign, ast.Assign)) and name in map(dotted, targets_of(each))
        ]
        over = made[0] if len(made) == 1 and made[0] is not None else over
    return over.elts if isinstance(over, (ast.List, ast.Set, ast.Tuple)) else []


def _named(call: ast.Call) -> Named | None:
    name, start = call.args[1], dotted(call.args[0])
    text = name.value if isinstance(name, ast.Constant) else None
    if not isinstance(text, str) or not text.isidentifier() or start is None:
        return None
    return Named(f"{start}.{text}", call.args[0], text, call.args[2] if len(call.args) == 3 else None)


def is_property(function: Function) -> bool:
    """Tell whether a method is read as an attribute."""
    return any(last_name(each) in PROPERTIES for each in function.decorator_list)


def given_by(node: ast.stmt) -> ast.expr | None:
    """Return what a statement gives to who called its function, or goes through it."""
    if isinstance(node, ast.Return):
        return node.value
    value = node.value if isinstance(node, ast.Expr) else None
    return value.value if isinstance(value, (ast.Yield, ast.YieldFrom)) else None


def is_one_of_many(node: ast.stmt) -> bool:
    """Tell whether what a statement gives is one of what is gone through: ``yield model``."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Yield)


def targets_of(node: ast.AST) -> list[ast.expr]:
    """Return what an assignment gives a value: of any other node nothing.

    Example:
        >>> [ast.unparse(each) for each in targets_of(ast.parse("a = b.c = 1").body[0])]
        ['a', 'b.c']
    """
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, (ast.AnnAssign, ast.AugAssign)) else []


def node_of(text: str) -> ast.expr:
    """Return the node of a dotted name, as if it stood on the first line."""
    first, *rest = text.split(".")
    node: ast.expr = ast.Name(first, ast.Load(), lineno=1, col_offset=0)
    for name in rest:
        node = ast.Attribute(node, name, ast.Load(), lineno=1, col_offset=0)
    return node
