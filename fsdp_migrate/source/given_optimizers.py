"""The optimizers that a framework is given with the model that it shards: their classes, and what makes them.

Composer's Trainer, Accelerate's ``prepare`` and Fabric's ``setup`` put the sharded parameters into them.
"""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from fsdp_migrate.source.composer_project import shards
from fsdp_migrate.source.optimizer_classes import Made, names_of, note, picked
from fsdp_migrate.source.project import dotted
from fsdp_migrate.source.project_kinds import ProjectKinds
from fsdp_migrate.source.project_scopes import scopes_of
from fsdp_migrate.source.python.argument_places import named_arguments
from fsdp_migrate.source.python.asked_as_models import asked_in, is_model
from fsdp_migrate.source.python.held import has_model
from fsdp_migrate.source.python.links import NOTHING
from fsdp_migrate.source.python.trainer_models import CHOOSES_OPTIMIZER, SETTINGS, TRAINER
from fsdp_migrate.source.python.walked import walked
from fsdp_migrate.source.values_bound import every_value, statements_in


if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fsdp_migrate.source.framework_models import FrameworkModels
    from fsdp_migrate.source.hf_trainers import HFProject
    from fsdp_migrate.source.project import Definition, Module, Place, Project
    from fsdp_migrate.source.python.links import Links


_GIVEN = "optimizers"
_CHOSEN = "optimizer_cls_and_kwargs"
_OF_A_TRAINER = "optimizer"
_TRAINER = re.compile(r"(?:^|[._])trainer$")
_NAMED = (ast.Name, ast.Attribute)
_WORDS = ("composer", _GIVEN)
_DEEPEST = 4
_OTHERS = re.compile(r"data|loader|model|sched|tokenizer")


def with_given_optimizers(
    project: Project, links: dict[Path, Links], frameworks: FrameworkModels
) -> dict[Path, Links]:
    """Tell the files with the classes, and the makers, of optimizers that frameworks are given."""
    asking = [
        path
        for path, text in project.texts.items()
        if all(word in text for word in _WORDS) and any(name in text for name in SETTINGS)
    ]
    found = _Given(project)
    for module in filter(None, map(project.module, asking)):
        for value, place in _given(project, module):
            found.follow(value, place)
    for module in filter(None, map(project.module, frameworks.files)):
        for value, place in _prepared(module, frameworks):
            found.follow(value, place)
    trainers = frameworks.hf if frameworks.hf is not None and frameworks.hf.files else None
    for value, module in _chosen_by_trainers(project) if trainers is not None else ():
        found.note(value, module)
    for value, place in _given_to_trainers(project, trainers) if trainers is not None else ():
        found.follow(value, place, part=0)
        for each in _firsts(value, place):
            found.note(each, place.module)
    return _told(found, links)


def _told(found: _Given, links: dict[Path, Links]) -> dict[Path, Links]:
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
    for scope in scopes_of(module):
        for statement in scope.statements:
            for call in statement.calls:
                given = named_arguments(call).get(_GIVEN)
                if given is not None and shards(project, call, statement.place):
                    yield given, statement.place


def _prepared(module: Module, frameworks: FrameworkModels) -> Iterator[tuple[ast.expr, Place]]:
    """Yield what ``prepare`` and ``setup`` are given beside models that they shard, loaders left out.

    Also by itself, ``accelerator.prepare(optimizer)``, where the same function has the model prepared so.
    """
    for scope in scopes_of(module):
        calls = [(call, each.place) for each in scope.statements for call in each.calls]
        sharding = {
            ast.unparse(call.func) for call, place in calls if has_model(frameworks.of_call(call, place))
        }
        asked = asked_in(module.tree)
        for call, place in calls if sharding else ():
            for each in call.args if ast.unparse(call.func) in sharding else ():
                text = dotted(each) or ""
                if not is_model(text, asked) and not _OTHERS.search(text.lower()):
                    yield each, place


def _chosen_by_trainers(project: Project) -> Iterator[tuple[ast.expr, Module]]:
    """Yield the classes of optimizers that the Trainers of a project's own give Hugging Face's."""
    for module in filter(None, map(project.module, project.holding([CHOOSES_OPTIMIZER]))):
        for method in walked(module.tree):
            if isinstance(method, ast.FunctionDef) and method.name == CHOOSES_OPTIMIZER:
                given = (each.value for each in walked(method) if isinstance(each, ast.Return))
                pairs = (each for each in given if isinstance(each, ast.Tuple) and len(each.elts) == 2)
                yield from ((each.elts[0], module) for each in pairs)


def _given_to_trainers(project: Project, trainers: HFProject) -> Iterator[tuple[ast.expr, Place]]:
    """Yield what Hugging Face's Trainers are given to step their model: an optimizer, or its class.

    ``Trainer(optimizers=(optimizer, None))``, ``Trainer(optimizer_cls_and_kwargs=(Own, {}))``, and
    ``trainer.optimizer = optimizer``. Of those in a tuple the first is meant.
    """
    asking = trainers.files.intersection(project.holding([_OF_A_TRAINER, _GIVEN, _CHOSEN]))
    for module in filter(None, map(project.module, sorted(asking))):
        for statement in (each for scope in scopes_of(module) for each in scope.statements):
            for call in statement.calls:
                given = named_arguments(call)
                asked = [given[name] for name in (_GIVEN, _CHOSEN) if name in given]
                if asked and _makes_a_trainer(call, statement.place, trainers):
                    yield from ((value, statement.place) for value in asked)
            assign = statement.node
            if isinstance(assign, ast.Assign) and any(
                isinstance(target, ast.Attribute)
                and target.attr == _OF_A_TRAINER
                and _is_a_trainer(target.value, statement.place, trainers)
                for target in assign.targets
            ):
                yield assign.value, statement.place


def _firsts(value: ast.expr, place: Place) -> Iterator[ast.expr]:
    """Yield what comes first in a tuple, by its name too: a class in ``(Own, {"lr": 1e-3})``."""
    named = [each for each, _, _ in _values(value, place)] if isinstance(value, _NAMED) else []
    for each in (value, *named):
        if isinstance(each, (ast.List, ast.Tuple)) and each.elts:
            yield each.elts[0]


def _makes_a_trainer(call: ast.Call, place: Place, trainers: HFProject) -> bool:
    """Tell whether a call makes one of Hugging Face's Trainers, ``super().__init__(..)`` in its class too."""
    if ast.unparse(call.func) == "super().__init__":
        return _is_within_a_trainer(place, trainers)
    return trainers.is_trainers(dotted(call.func) or "?", place)


def _is_a_trainer(node: ast.expr, place: Place, trainers: HFProject) -> bool:
    """Tell whether it is such a Trainer, by what it is made of, and what a function is given by its name."""
    text = dotted(node) or "?"
    if text == "self":
        return _is_within_a_trainer(place, trainers)
    values = [value for value, _, _ in _values(node, place)] if isinstance(node, _NAMED) else []
    made = [each for each in values if isinstance(each, ast.Call)]
    if made:
        return any(_makes_a_trainer(each, place, trainers) for each in made)
    return _TRAINER.search(text) is not None


def _is_within_a_trainer(place: Place, trainers: HFProject) -> bool:
    return trainers.classes(place.module).get(place.scope.rpartition(".")[0]) == TRAINER


class _Given:
    """What was found by following what the Trainers are given."""

    def __init__(self, project: Project) -> None:
        self.made = Made()
        self.makers: dict[Path, set[str]] = {}
        """The functions by their files that make such an optimizer and give it back."""
        self._project = project
        self._called = ProjectKinds(project).called

    def follow(self, value: ast.expr, place: Place, depth: int = 0, part: int | None = None) -> None:
        """Note the classes that an optimizer may be of, and the functions that make it.

        ``part``: which of the values it is that an expression gives: ``optimizer, scheduler = build(model)``.
        """
        if depth > _DEEPEST:
            return
        if isinstance(value, (ast.Name, ast.Attribute)):
            for each, at, its in _values(value, place):
                self.follow(each, at, depth + 1, part if its is None else its)
        elif isinstance(value, ast.IfExp):
            self.follow(value.body, place, depth, part)
            self.follow(value.orelse, place, depth, part)
        elif isinstance(value, (ast.List, ast.Tuple)):
            is_seen = part is not None and not any(isinstance(each, ast.Starred) for each in value.elts)
            for count, item in enumerate(value.elts):
                if not is_seen or count == part:
                    self.follow(item, place, depth)
        elif isinstance(value, ast.Call):
            self._follow_call(value, place, depth, part)

    def _follow_call(self, call: ast.Call, place: Place, depth: int, part: int | None) -> None:
        self.note(call.func, place.module)
        for definition in self._called(call.func, place):
            if not isinstance(definition.node, ast.ClassDef):
                self._follow_function(definition, depth, part)

    def note(self, named: ast.expr, module: Module) -> None:
        """Note the classes of optimizers that an expression of a file may stand for."""
        for definition in picked(named, module, self._called):
            if note(definition, self._called, self.made.classes):
                self.made.names.setdefault(module.path, set()).update(names_of(named, module))

    def _follow_function(self, definition: Definition, depth: int, part: int | None) -> None:
        self.makers.setdefault(definition.module.path, set()).add(definition.name)
        for each in statements_in(definition.module, definition.name):
            if isinstance(each.node, ast.Return) and each.node.value is not None:
                self.follow(each.node.value, each.place, depth + 1, part)


def _values(node: ast.Name | ast.Attribute, place: Place) -> Iterator[tuple[ast.expr, Place, int | None]]:
    """Yield what a name, or ``self.optimizer`` of a class, is given; and which part of that."""
    if isinstance(node, ast.Name):
        for bound in every_value(place, node.id):
            if isinstance(bound.node, ast.expr):
                yield bound.node, bound.place, bound.part
        return
    text, owner = dotted(node) or "", place.scope.rpartition(".")[0]
    for scope in scopes_of(place.module) if text.startswith("self.") and owner else ():
        for statement in scope.statements:
            if statement.place.scope.rpartition(".")[0] == owner:
                for value, part in _assigned(statement.node, text):
                    yield value, statement.place, part


def _assigned(node: ast.stmt, text: str) -> Iterator[tuple[ast.expr, int | None]]:
    """Yield what a statement assigns to an attribute, and which part of that."""
    for target in node.targets if isinstance(node, ast.Assign) else ():
        parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else (target,)
        for count, each in enumerate(parts):
            if isinstance(node, ast.Assign) and dotted(each) == text:
                yield node.value, None if each is target else count
