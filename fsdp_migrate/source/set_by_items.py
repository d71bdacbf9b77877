"""Attributes that are set by the names in a dict: ``for k, v in parts.items(): setattr(self, k, v)``."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from fsdp_migrate.source.project import dotted
from fsdp_migrate.source.project_names import owner_of_dict
from fsdp_migrate.source.python.by_name import SETS
from fsdp_migrate.source.python.held import items_in


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fsdp_migrate.source.project import Place


def set_by_items(
    call: ast.Call, place: Place, kinds: Callable[[ast.expr], set[str]]
) -> Iterator[tuple[str, set[str]]]:
    """Yield the attributes that a call sets by what a dict holds, and what each is given.

    Also ``self.__dict__.update(parts)``, and ``vars(self).update(**parts)``.
    """
    owner: ast.expr | None = None
    held: list[ast.expr] = []
    if dotted(call.func) in SETS and len(call.args) == 3:
        owner, held = call.args[0], _gone_through(call.args[1], call.args[2], place)
    elif isinstance(call.func, ast.Attribute) and call.func.attr == "update":
        owner = owner_of_dict(call.func.value)
        held = [*call.args, *(each.value for each in call.keywords if each.arg is None)]
    start = dotted(owner) if owner is not None else None
    for each in held if start is not None else ():
        for name, its in items_in(kinds(each)).items():
            yield f"{start}.{name}", its


def _gone_through(key: ast.expr, value: ast.expr, place: Place) -> list[ast.expr]:
    """Return the dict whose items a loop around gives a name and a value: ``parts[k]`` as well."""
    for loop in reversed(place.loops):
        if not isinstance(loop, (ast.For, ast.AsyncFor)):
            continue
        over, parts = loop.iter, loop.target.elts if isinstance(loop.target, ast.Tuple) else []
        func = over.func if isinstance(over, ast.Call) and not over.args else None
        names = [dotted(each) for each in parts]
        if isinstance(func, ast.Attribute) and func.attr == "items":
            return [func.value] if names == [dotted(key), dotted(value)] and None not in names else []
        if dotted(loop.target) == dotted(key) and isinstance(value, ast.Subscript):
            return [value.value] if dotted(value.slice) == dotted(key) else []
    return []
