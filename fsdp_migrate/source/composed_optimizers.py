"""The optimizers that Composer's Trainer is given to shard by FSDP1: their classes, and what makes them.

It shards the model that it is given with them, and puts the sharded parameters into them.
"""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from fsdp_migrate.source.optimizer_classes import Made, names_of, note, picked
from fsdp_migrate.source.project import Definition, Module, Place, dotted
from fsdp_migrate.source.project_kinds import ProjectKinds
from fsdp_migrate.source.python.heirs import COMPOSERS
from fsdp_migrate.source.python.links import NOTHING
from fsdp_migrate.source.python.trainer_models import SETTINGS
from fsdp_migrate.source.python.walked import walked


if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fsdp_migrate.source.project import Project
    from fsdp_migrate.source.python.links import Links


_GIVEN = "optimizers"
_WORDS = ("composer", _GIVEN)
_DEEPEST = 4


def with_composed_optimizers(project: Project, links: dict[Path, Links]) -> dict[Path, Links]:
    """Tell the files with the classes, and the makers, of optimizers that Composer's Trainer is given."""
    asking = [
        path
        for path, text in project.texts.items()
        if all(word in text for word in _WORDS) and any(name in text for name in SETTINGS)
    ]
    found = _Composed(project)
    for module in filter(None, map(project.module, asking)):
        for value, place in _given(project, module):
            found.follow(value, place)
    return _told(found, links)


def _told(found: _Composed, links: dict[Path, Links]) -> dict[Path, Links]:
    told = dict(links)
    for path in {*found.made.classes, *found.made.names, *found.makers}:
        known, classes = links.get(path, NOTHING), found.made.classes.get(path, set())
        # What is made of a plain model here may be made of a sharded one as well.
        wholes = {name for name in classes if name not in known.optimizers or name in known.whole_optimizers}
        told[path] = replace(
            known,
            optimizers=known.optimizers | classes,
            whole_optimizers=known.whole_optimizers | wholes,
            own_optimizers=known.own_optimizers | found.made.names.get(path, set()),
            optimizer_makers=frozenset(found.makers.get(path, ())),
        )
    return told


def _given(project: Project, module: Module) -> Iterator[tuple[ast.expr, Place]]:
    """Yield what Trainers of a file are given as their optimizers, beside FSDP's settings."""
    scopes = [("", module.tree), *((each.name, each.node) for each in module.definitions.values())]
    inner = {id(node): name for name, scope in scopes for node in _of_scope(scope)}
    for call in (node for node in walked(module.tree) if isinstance(node, ast.Call)):
        named = {each.arg: each.value for each in call.keywords if each.arg}
        asked = [named[name] for name in SETTINGS if name in named]
        is_asked = any(not isinstance(each, ast.Constant) or each.value is not None for each in asked)
        place = Place(module, inner.get(id(call), ""))
        name = project.qualified(dotted(call.func) or "?", place) or ""
        if is_asked and _GIVEN in named and COMPOSERS.match(name):
            yield named[_GIVEN], place


def _of_scope(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield what stands in a function or a module, without what the functions and classes in it hold."""
    todo = list(ast.iter_child_nodes(scope))
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            todo.extend(ast.iter_child_nodes(node))


class _Composed:
    """What was found by following what the Trainers are given."""

    def __init__(self, project: Project) -> None:
        self.made = Made()
        self.makers: dict[Path, set[str]] = {}
        """The functions by their files that make such an optimizer and give it back."""
        self._project = project
        self._called = ProjectKinds(project).called

    def follow(self, value: ast.expr, place: Place, depth: int = 0) -> None:
        """Note the classes that an optimizer may be of, and the functions that make it."""
        if depth > _DEEPEST:
            return
        if isinstance(value, ast.Name):
            scope = self._project.node(place.module, place.scope) or place.module.tree
            for node in _of_scope(scope):
                is_its = isinstance(node, ast.Assign) and value.id in map(dotted, node.targets)
                if isinstance(node, ast.Assign) and is_its:
                    self.follow(node.value, place, depth + 1)
        elif isinstance(value, ast.IfExp):
            self.follow(value.body, place, depth)
            self.follow(value.orelse, place, depth)
        elif isinstance(value, (ast.List, ast.Tuple)):
            for each in value.elts:
                self.follow(each, place, depth)
        elif isinstance(value, ast.Call):
            self._follow_call(value, place, depth)

    def _follow_call(self, call: ast.Call, place: Place, depth: int) -> None:
        for definition in picked(call.func, place.module, self._called):
            if note(definition, self._called, self.made.classes):
                names = names_of(call.func, place.module)
                self.made.names.setdefault(place.module.path, set()).update(names)
        for definition in self._called(call.func, place):
            if not isinstance(definition.node, ast.ClassDef):
                self._follow_function(definition, depth)

    def _follow_function(self, definition: Definition, depth: int) -> None:
        self.makers.setdefault(definition.module.path, set()).add(definition.name)
        place = Place(definition.module, definition.name)
        for node in _of_scope(definition.node):
            if isinstance(node, ast.Return) and node.value is not None:
                self.follow(node.value, place, depth + 1)
