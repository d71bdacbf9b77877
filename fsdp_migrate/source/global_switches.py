"""Switches of a project's settings on which every wrapping depends, and the places where they are off."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from fsdp_migrate.source import catalog
from fsdp_migrate.source.callers import Callers
from fsdp_migrate.source.project import dotted
from fsdp_migrate.source.project_scopes import scopes_of
from fsdp_migrate.source.python.known_parts import known_parts
from fsdp_migrate.source.python.walked import walked


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.project import Asked, Module, Place, Project

    Fact = tuple[str, bool]


def calls_without(project: Project) -> set[ast.Call]:
    """Return the calls that run only where a switch is off that every wrapping by FSDP1 needs.

    ``if not cfg.fsdp:`` in one function, where ``if cfg.fsdp:`` in another has each ``FSDP(model)``.
    """
    needed = _needed(project)
    off = {(text, not truth) for text, truth in needed}
    if not off:
        return set()
    texts = project.texts.items()
    modules = (project.module(path) for path, text in texts if any(_last(name) in text for name, _ in off))
    return {
        call
        for module in modules
        if module is not None
        for scope in scopes_of(module)
        for statement in scope.statements
        if not off.isdisjoint(_facts(project, statement.place))
        for call in statement.calls
    }


def _needed(project: Project) -> set[Fact]:
    """Return what is known, by names of files' top levels, wherever FSDP1's class is taken."""
    callers, common = Callers(project), None
    for path, text in project.texts.items():
        module = project.module(path) if catalog.FSDP in text or "FSDP" in text else None
        for place in _wrappings(project, callers, module) if module is not None else ():
            known = set(_facts(project, place)) if place is not None else set()
            common = known if common is None else common & known
            if not common:
                return set()
    return {fact for fact in common or () if not _is_set(project, _last(fact[0]))}


def _wrappings(project: Project, callers: Callers, module: Module) -> Iterator[Place | None]:
    """Yield where a file takes FSDP1's class, but to ask for it; None where that is no call."""
    around = callers.around(module)
    for node in walked(module.tree):
        text = dotted(node) if isinstance(node, (ast.Attribute, ast.Name)) else None
        root = (text or "").partition(".")[0]
        written = module.imports.get(root, "")
        whole = f"{written}.{(text or '').partition('.')[2]}".strip(".") if written else ""
        # By another file too: `from utils import FSDP`.
        is_one = not {_last(whole), _last(text or "")}.isdisjoint({"FSDP", catalog.FSDP})
        if not is_one or id(node) in around.never:
            continue
        above = around.above.get(id(node))
        is_asked = isinstance(above, (ast.Attribute, ast.arg, ast.AnnAssign, ast.Tuple)) or (
            isinstance(above, ast.Call) and dotted(above.func) in {"isinstance", "issubclass"}
        )
        if not is_asked:
            yield around.places.get(id(above))


def _facts(project: Project, place: Place) -> Iterator[Fact]:
    """Yield the names of settings that are known to be true, or false, at a place."""
    for asked in place.asked:
        yield from _parts(project, asked, place)


def _parts(project: Project, asked: Asked, place: Place) -> Iterator[Fact]:
    for test, truth in known_parts(asked.test, truth=asked.truth):
        if isinstance(test, ast.Attribute) and (text := dotted(test)) is not None:
            written = _written(project, text, place)
            yield from [(written, truth)] if written else []


def _written(project: Project, text: str, place: Place) -> str:
    """Return a setting by what the project calls it: of another file, or of this one's top level."""
    root = text.partition(".")[0]
    scope = place.scope
    while scope:
        node = project.node(place.module, scope)
        if any(_binds(each, root) for each in (walked(node) if node is not None else ())):
            return ""
        scope = scope.rpartition(".")[0]
    found = project.qualified(text, place).lstrip(".")
    return found or (f"{place.module.path.stem}.{text}" if root not in place.module.definitions else "")


def _binds(node: ast.AST, name: str) -> bool:
    is_stored = isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load)
    return is_stored or (isinstance(node, ast.arg) and node.arg == name)


def _last(text: str) -> str:
    return text.rpartition(".")[2]


def _is_set(project: Project, name: str) -> bool:
    """Tell whether a file sets an attribute of that name while it runs."""
    word = re.escape(name)
    sets = re.compile(
        rf"\.{word}\s*[|&^+-]?=(?!=)|setattr\([^)\n]*['\"]{word}['\"]|\[['\"]{word}['\"]\]\s*=(?!=)"
    )
    return any(sets.search(text) for text in project.texts.values() if name in text)
