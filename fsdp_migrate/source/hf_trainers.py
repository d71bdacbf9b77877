"""Hugging Face's Trainers and callbacks of a project, as classes of its own, and where its Trainers train."""

from __future__ import annotations

import ast
import functools
import itertools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fsdp_migrate.source.own_methods import run_in_hooks
from fsdp_migrate.source.own_trainers import is_of_its_own
from fsdp_migrate.source.project import Place, dotted
from fsdp_migrate.source.python.argument_places import named_arguments, parameters_of
from fsdp_migrate.source.python.heirs import HUGGING_FACES
from fsdp_migrate.source.python.held import FLAT, item, put
from fsdp_migrate.source.python.trainer_models import (
    CALLBACK,
    GIVEN_SHARDED,
    HELD_TRAINER,
    MAKES_OPTIMIZER,
    ON_INIT,
    SHARDED,
    TRAINER,
    holds_model,
    is_run_before,
    is_run_by_callbacks,
    is_run_sharded,
    of_itself,
)
from fsdp_migrate.source.python.walked import walked
from fsdp_migrate.source.trained_names import TrainedNames, model_given


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from fsdp_migrate.source.heirs import Heirs
    from fsdp_migrate.source.project import Definition, Module, Project


_BASES = (
    (HUGGING_FACES, TRAINER),
    (re.compile(r"^(transformers|trl)\b.*Callback$"), CALLBACK),
)
_TRAINER = re.compile(r"Trainer$")
_DEEPEST = 5
_BASES_AT = 1
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(eq=False)
class HFProject:
    """Answers for the files of a project, of which one asks Hugging Face's Trainer for FSDP1."""

    project: Project
    files: frozenset[Path]
    _classes: dict[Path, dict[str, str]] = field(default_factory=dict)

    @functools.cached_property
    def _names(self) -> TrainedNames:
        return TrainedNames(self.project, self._model_of)

    @functools.cached_property
    def _trainers(self) -> TrainedNames:
        return TrainedNames(self.project, lambda *asked: self._training(*asked)[0])

    def classes(self, module: Module) -> dict[str, str]:
        """Return the classes of a file that are Trainers or callbacks, with which of both."""
        if module.path not in self._classes:
            owners = (each for each in module.definitions.values() if isinstance(each.node, ast.ClassDef))
            known = {
                owner.name: self._base_of(owner) or self._mixed_in.get(owner.key, "") for owner in owners
            }
            self._classes[module.path] = {name: base for name, base in known.items() if base}
        return self._classes[module.path]

    @functools.cached_property
    def _mixed_in(self) -> dict[str, str]:
        """Return the classes, by their keys, that are bases of a class beside a Trainer, or a callback."""
        found: dict[str, str] = {}
        for module in filter(None, map(self.project.module, sorted(self.files))):
            for bases in _bases_in(module):
                owners = [self.project.named(text, Place(module, "")) for text in bases]
                names = [self.project.qualified(text, Place(module, "")) for text in bases]
                which = next((w for p, w in _BASES if any(map(p.match, names))), "") or next(
                    filter(None, (self._base_of(each) for each in owners if each is not None)), ""
                )
                mixed = (each for each in owners if which and each is not None and not self._base_of(each))
                for each in mixed:
                    found.update({one.key: which for one in (each, *self.project.bases(each))})
        return found

    @functools.cached_property
    def _own_hooks(self) -> Mapping[str, frozenset[str]]:
        owners: dict[str, list[Definition]] = {TRAINER: [], CALLBACK: []}
        for module in filter(None, map(self.project.module, sorted(self.files))):
            for name, which in self.classes(module).items():
                owners[which].append(module.definitions[name])
        return {
            **run_in_hooks(self.project, owners[TRAINER], is_run_sharded, is_run_before),
            **run_in_hooks(
                self.project, owners[CALLBACK], is_run_by_callbacks, {"__init__", ON_INIT}.__contains__
            ),
        }

    def own_hooks(self, module: Module) -> dict[str, frozenset[str]]:
        """Return by class the methods of its own that a Trainer runs once its model is sharded."""
        named = ((name, module.definitions[name].key) for name in self.classes(module))
        return {name: self._own_hooks[key] for name, key in named if key in self._own_hooks}

    def _base_of(self, owner: Definition, depth: int = 0) -> str:
        if not isinstance(owner.node, ast.ClassDef) or depth == _DEEPEST:
            return ""
        place = Place(owner.module, "")
        for base in owner.node.bases:
            name = self.project.qualified(dotted(base) or "?", place)
            for pattern, which in _BASES:
                if pattern.match(name):
                    return which
        above = (self._base_of(each, depth + 1) for each in self.project.bases(owner))
        return next(filter(None, above), "")

    def _patched(self, module: Module) -> Iterator[Definition]:
        """Yield the functions that a file puts into a Trainer's class: ``Trainer.save_model = save``."""
        place = Place(module, "")
        for node in walked(module.tree):
            target = dotted(node.targets[0]) if isinstance(node, ast.Assign) else None
            owner, _, method = (target or "").rpartition(".")
            if not isinstance(node, ast.Assign) or not owner or not is_run_sharded(method):
                continue
            found = self.project.named(dotted(node.value) or "?", place)
            if found is not None and isinstance(found.node, _FUNCTIONS) and self.is_trainers(owner, place):
                yield found

    def given(self) -> Iterator[tuple[str, str, set[str]]]:
        """Yield the parameters that are a sharded model, or hold one: the method, the name, what it is."""
        for module in filter(None, map(self.project.module, sorted(self.files))):
            for each in self._patched(module):
                names = [arg.arg for arg in each.node.args.args] if isinstance(each.node, _FUNCTIONS) else []
                yield from ((each.key, name, holds_model()) for name in names[:1])
        for module in filter(None, map(self.project.module, sorted(self.files))):
            for name, which in self.classes(module).items():
                start = f"{name}."
                for each in module.definitions.values():
                    method = each.name.removeprefix(start)
                    if (
                        each.name.startswith(start)
                        and "." not in method
                        and isinstance(each.node, _FUNCTIONS)
                    ):
                        for parameter, kinds in _given_to(each.node, method, which):
                            yield each.key, parameter, kinds

    def of_name(self, text: str, place: Place) -> set[str]:
        """Return what a name is in a method of a Trainer, or below the line where one has trained."""
        if place.module.path not in self.files:
            return set()
        owner, _, method = place.scope.rpartition(".")
        if text.startswith("self."):
            which = self.classes(place.module).get(owner)
            own = self.own_hooks(place.module).get(owner, ()) if which else ()
            if which == CALLBACK and HELD_TRAINER.search(text):
                return holds_model() if is_run_by_callbacks(method) or method in own else set()
            return of_itself(text, method, own) if which == TRAINER else set()
        if self._names.is_one(text, place):
            return set(SHARDED)
        return holds_model() if self._trainers.is_one(text, place) else set()

    def _model_of(self, call: ast.Call, made: Mapping[str, ast.Call], place: Place) -> str | None:
        """Return the name of the model that ``trainer.train()`` shards."""
        _, maker = self._training(call, made, place)
        return model_given(maker) if maker is not None else None

    def _training(
        self, call: ast.Call, made: Mapping[str, ast.Call], place: Place
    ) -> tuple[str | None, ast.Call | None]:
        """Return the name of the Trainer that a call trains, and what made that, if it does so."""
        func = call.func
        trainer = dotted(func.value) if isinstance(func, ast.Attribute) and func.attr == "train" else None
        maker = made.get(trainer) if trainer is not None else None
        is_trainer = maker is not None and _is_trainer(maker, self._heirs(place.module))
        if not is_trainer or maker is None:
            return None, None
        owner = self.project.named(dotted(maker.func) or "?", place)
        is_own = owner is not None and is_of_its_own(self.project, owner)
        return (None, None) if is_own else (trainer, maker)

    def _heirs(self, module: Module) -> set[str]:
        """Return what a file calls the project's own Trainers, its own and those that it imports."""
        place = Place(module, "")
        imported = ((name, self.project.named(name, place)) for name in module.imports)
        owned = {name for name, which in self.classes(module).items() if which == TRAINER}
        typed = ((name, bases) for name, bases in _typed(module) if name)
        owned |= {name for name, bases in typed if any(self.is_trainers(text, place) for text in bases)}
        return owned | {
            name for name, owner in imported if owner is not None and self._base_of(owner) == TRAINER
        }

    def is_trainers(self, text: str, place: Place) -> bool:
        """Tell whether a name is one of Hugging Face's Trainers, or of a class that derives from them."""
        owner = self.project.named(text, place)
        return HUGGING_FACES.match(self.project.qualified(text, place)) is not None or (
            owner is not None and self._base_of(owner) == TRAINER
        )

    def with_mixins(self) -> HFProject:
        """Return the same with the files of the classes that are mixed into its Trainers."""
        more = {self.project.split(key)[0] for key in self._mixed_in}
        return self if more <= self.files else HFProject(self.project, self.files | more)


def _bases_in(module: Module) -> Iterator[list[str]]:
    """Yield the bases of each class that has several, also of those that ``type`` makes."""
    for each in module.definitions.values():
        if isinstance(each.node, ast.ClassDef) and len(each.node.bases) > 1:
            yield [dotted(base) or "?" for base in each.node.bases]
    yield from (bases for _, bases in _typed(module))


def _typed(module: Module) -> Iterator[tuple[str, list[str]]]:
    """Yield the classes of ``type("Mine", (Mixin, Trainer), {})``: the name that each has, and its bases."""
    for node in walked(module.tree):
        value = node.value if isinstance(node, (ast.Assign, ast.Return)) else None
        if isinstance(value, ast.Call) and dotted(value.func) == "type" and len(value.args) > _BASES_AT:
            bases = value.args[_BASES_AT]
            target = dotted(node.targets[0]) if isinstance(node, ast.Assign) else None
            if isinstance(bases, ast.Tuple):
                yield target or "", [dotted(each) or "?" for each in bases.elts]


def with_heirs(project: Project, files: set[Path], heirs: Mapping[Path, Heirs]) -> HFProject:
    """Return the Trainers and callbacks of some files, and of those that import their classes.

    ``heirs``: the classes of other files, that derive from the frameworks', by the files that import them.
    """
    by_heirs = {
        p for p, each in heirs.items() if any(map(HUGGING_FACES.match, itertools.chain(*each.values())))
    }
    known = latest = files | by_heirs if files else files
    found = HFProject(project, frozenset(files))
    for _ in range(_DEEPEST):
        modules = filter(None, map(project.module, sorted(latest)))
        names = {name for module in modules for name in found.classes(module)}
        latest = set(project.importing(names)) - known if names else set()
        if not latest:
            break
        known = known | latest
    found = HFProject(project, frozenset(known)) if known != files else found
    return found.with_mixins()


def _given_to(
    node: ast.FunctionDef | ast.AsyncFunctionDef, method: str, which: str
) -> Iterator[tuple[str, set[str]]]:
    names = [each.arg for each in parameters_of(node)]
    if which == CALLBACK:
        if not is_run_by_callbacks(method):
            return
        yield from (("model", set(SHARDED)) for name in names if name == "model")
        if node.args.kwarg is not None and "model" not in names:
            yield node.args.kwarg.arg, put(item("model"), SHARDED)
    elif method in GIVEN_SHARDED and len(names) > 1:
        yield names[1], set(SHARDED)
    elif is_run_sharded(method) and "model" in names:
        yield "model", set(SHARDED)
    elif method == MAKES_OPTIMIZER and len(names) > 1:
        yield names[1], {FLAT}


def _is_trainer(call: ast.Call, heirs: set[str]) -> bool:
    name = dotted(call.func) or ""
    if name in heirs:
        return True
    is_named = _TRAINER.search(name) is not None
    return is_named and (len(call.args) > 1 or "args" in named_arguments(call))
