"""What each file is told of functions that give a model's parameters, and of objects that keep them."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source.handed_lists import handed_lists
from fsdp_migrate.source.held_parameters import HeldParameters
from fsdp_migrate.source.project import Definition, Place, dotted
from fsdp_migrate.source.project_scopes import scopes_of
from fsdp_migrate.source.python.parameters import PARAMETERS
from fsdp_migrate.source.python.walked import last_word, walked


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from fsdp_migrate.source.following import _Following
    from fsdp_migrate.source.python.links import GivenParameters, HandedList


_ASKS: Final = re.compile(r"\.(?:named_)?parameters\(")


@dataclass
class ToldParameters:
    """By files and the names of things there, what these give, and keep."""

    gives: dict[Path, dict[str, frozenset[GivenParameters]]] = field(default_factory=dict)
    keeps: dict[Path, dict[str, frozenset[tuple[int, str]]]] = field(default_factory=dict)
    takes: dict[Path, dict[str, frozenset[HandedList]]] = field(default_factory=dict)


def told_parameters(known: _Following) -> ToldParameters:
    """Return what the files that are looked at are told of what they call."""
    told, held = ToldParameters(), HeldParameters(known.called)
    names, shards = _names(known), _sharding(known)
    for module in tuple(known.looked_at) if names or shards else ():
        for scope in scopes_of(module):
            for statement in scope.statements:
                for call in statement.calls:
                    if last_word(call.func) in names:
                        _note(known, held, told, call, statement.place)
                    if last_word(call.func) in shards and len(call.args) + len(call.keywords) > 1:
                        _note_handed(known, told, call, statement.place)
    return told


def _names(known: _Following) -> set[str]:
    """Return what functions of the project are called that ask a module for parameters, or call such."""
    found: set[str] = set()
    for path, text in known.project.texts.items():
        module = known.project.module(path) if _ASKS.search(text) else None
        for each in _functions(module.definitions.values()) if module is not None else ():
            owner = each.owner
            last = each.name.rpartition(".")[2]
            found.add(last if last != "__init__" or owner is None else owner.name.rpartition(".")[2])
    return found - {"forward", "main", "step"}


def _sharding(known: _Following) -> set[str]:
    """Return what the functions and classes are called that shard what they are given, or an attribute."""
    scopes = (scope.rpartition(":")[2].split(".") for scope, _ in (*known.inner, *known.made))
    return {part for parts in scopes for part in parts[-2:]} - {"", "__init__", "main"}


def _note_handed(known: _Following, told: ToldParameters, call: ast.Call, place: Place) -> None:
    written = known.written(call.func, place) or (dotted(call.func) or "")
    for definition in known.called(call.func, place) if written else ():
        if found := frozenset(handed_lists(known, definition)):
            told.takes.setdefault(place.module.path, {})[written] = found


def _functions(definitions: Iterable[Definition]) -> Iterator[Definition]:
    for each in definitions:
        if isinstance(each.node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            calls = (call.func for call in walked(each.node) if isinstance(call, ast.Call))
            if any(isinstance(func, ast.Attribute) and func.attr in PARAMETERS for func in calls):
                yield each


def _called(known: _Following, func: ast.expr, place: Place) -> list[Definition]:
    """Return what a call calls: of an unknown class's object, the one method of that name."""
    found = list(known.called(func, place))
    if found or not isinstance(func, ast.Attribute) or "fsdp" not in known.kinds(func.value, place):
        return found
    paths = known.project.holding([f"def {func.attr}(self"])
    modules = filter(None, map(known.project.module, paths))
    ending = f".{func.attr}"
    made = [each for one in modules for name, each in one.definitions.items() if name.endswith(ending)]
    return made if len(made) == 1 else []


def _note(
    known: _Following, held: HeldParameters, told: ToldParameters, call: ast.Call, place: Place
) -> None:
    written = known.written(call.func, place) or (dotted(call.func) or "")
    for definition in _called(known, call.func, place) if written else ():
        path = place.module.path
        if isinstance(definition.node, ast.ClassDef):
            kept = frozenset(held.kept(definition))
            if kept:
                told.keeps.setdefault(path, {})[written] = kept
        elif given := held.given(definition):
            told.gives.setdefault(path, {})[written] = given
        elif kept := frozenset(held.kept_by(definition)):
            told.keeps.setdefault(path, {})[written] = kept
