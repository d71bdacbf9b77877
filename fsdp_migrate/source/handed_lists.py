"""Lists of parameters that are handed to what shards the model itself, and takes them for its own since.

``Loop(net, params)``, whose constructor or another method shards ``net``, and clips ``self.params``.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source.project import Definition, dotted
from fsdp_migrate.source.python.argument_places import argument_at
from fsdp_migrate.source.python.frameworks import by_whom
from fsdp_migrate.source.taken_lists import is_taken


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.following import _Following
    from fsdp_migrate.source.python.links import HandedList


_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
_SAME: Final = frozenset({"list", "set", "tuple"})


def handed_lists(known: _Following, definition: Definition) -> Iterator[HandedList]:
    """Yield the arguments of a function, or a class, that are such a model and such a list; and by whom.

    Args:
        known: The models of the project.
        definition: The function or class.
    """
    is_class = isinstance(definition.node, ast.ClassDef)
    made = known.project.method(definition, "__init__") if is_class else definition
    if made is None or not isinstance(made.node, _FUNCTIONS):
        return
    names = [each.arg for each in ast.walk(made.node.args) if isinstance(each, ast.arg)]
    sharded = {name: by for name in names if (by := _sharded_by(known, made, name)) is not None}
    for name in names if sharded else ():
        if name not in sharded and _is_taken_since(made, name, min(_lines(known, made, sharded))):
            for model, by in sharded.items():
                places = [
                    argument_at(made.node, each, is_method=made.owner is not None) for each in (model, name)
                ]
                if places[0] is not None and places[1] is not None:
                    yield (*places[0], *places[1], by)


def _sharded_by(known: _Following, made: Definition, name: str) -> str | None:
    """Return the framework that shards an argument, or nothing for FSDP1's class; None if none does."""
    keys = [(made.key, name)]
    if "fsdp" in known.facts.get(keys[0], set()) and keys[0] not in {*known.inner, *known.made}:
        return None  # it is given sharded: a list that comes with it is one of its parameters
    owner = made.owner
    keys += [(owner.key, text) for text in _kept_as(made, name)] if owner is not None else []
    for key, text in keys:
        scopes = {scope for scope, each in (*known.inner, *known.made) if each == text}
        is_here = any(scope == key or scope.startswith(f"{key}.") for scope in scopes)
        kinds = known.facts.get((key, text), set())
        if is_here and "fsdp" in kinds:
            return by_whom(kinds)
    return None


def _kept_as(made: Definition, name: str) -> set[str]:
    """Return the attributes that a constructor gives an argument, as it is or as a list of it."""
    found: set[str] = set()
    for line in ast.walk(made.node):
        if not isinstance(line, ast.Assign):
            continue
        value = line.value
        if isinstance(value, ast.Call) and dotted(value.func) in _SAME and value.args:
            value = value.args[0]
        if dotted(value) == name:
            found |= {text for each in line.targets if (text := dotted(each) or "").startswith("self.")}
    return found


def _lines(known: _Following, made: Definition, models: dict[str, str]) -> set[int]:
    """Return the lines of a function that shard; its first where another method does."""
    found = {line for name in models for line, _ in known.inner.get((made.key, name), ())}
    return found or {made.node.lineno}


def _is_taken_since(made: Definition, name: str, line: int) -> bool:
    """Tell whether a list is taken for parameters below a line, or by another method of the object."""
    if is_taken(made.node, name, below=line):
        return True
    owner = made.owner
    methods = owner.node.body if owner is not None and isinstance(owner.node, ast.ClassDef) else []
    kept = _kept_as(made, name) if methods else set()
    others = [each for each in methods if isinstance(each, _FUNCTIONS) and each is not made.node]
    return any(is_taken(each, text) for each in others for text in kept)
