"""The models that frameworks shard, over the files of a project: what ``prepare`` gives, and the like.

What a source by itself shows of them stands in :mod:`fsdp_migrate.source.python.frameworks`.
"""

from __future__ import annotations

import ast
import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fsdp_migrate.source.heirs import classes_above
from fsdp_migrate.source.other_launches import is_of_other_launch
from fsdp_migrate.source.project import dotted, last_name
from fsdp_migrate.source.python.accelerate_models import CLIPS, NORM, prepared_by
from fsdp_migrate.source.python.accelerators import ACCELERATORS, PREPARES, UNWRAPS, is_one, method_in
from fsdp_migrate.source.python.argument_places import named_arguments
from fsdp_migrate.source.python.asked_as_models import asked_in, called_as, modules_in
from fsdp_migrate.source.python.fabric_models import FABRICS, SETS_UP, set_up_by
from fsdp_migrate.source.python.fabrics_made import makes_plain, shards_nothing
from fsdp_migrate.source.python.heirs import OF_KINDS
from fsdp_migrate.source.python.named_objects import last_part
from fsdp_migrate.source.python.starred import given_in
from fsdp_migrate.source.python.walked import walked


if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

    from fsdp_migrate.source.composer_project import ComposerProject
    from fsdp_migrate.source.hf_trainers import HFProject
    from fsdp_migrate.source.lightning_project import LightningProject
    from fsdp_migrate.source.project import Place
    from fsdp_migrate.source.python.named_objects import NamedObjects


@dataclass(frozen=True)
class FrameworkModels:
    """Answers for the files of a project what the frameworks that these use shard. Reads only."""

    users: Mapping[str, Collection[Path]] = field(default_factory=dict)
    """By framework the files whose models it shards by FSDP1."""
    hf: HFProject | None = None
    """Hugging Face's Trainers of the project."""
    lightning: LightningProject | None = None
    """Lightning's modules and callbacks."""
    composer: ComposerProject | None = None
    """Composer's callbacks and algorithms."""
    objects: Mapping[Path, Mapping[str, frozenset[str]]] = field(default_factory=dict)
    """By file and class the names of frameworks' objects that other files make."""
    heirs: Mapping[Path, Mapping[str, frozenset[str]]] = field(default_factory=dict)
    """By file the imported classes of the project that frameworks' classes stand above."""
    told: Mapping[str, Collection[Path]] = field(default_factory=dict)
    """By framework the files of which others say that it shards: another source, a config, a launch line."""

    @property
    def files(self) -> set[Path]:
        """The files whose models a framework shards."""
        known = (each.files for each in (self.lightning, self.composer) if each is not None)
        return {path for paths in self.users.values() for path in paths}.union(self.trainers, *known)

    @property
    def trainers(self) -> frozenset[Path]:
        """The files that use Hugging Face's Trainer, where it is asked for FSDP1."""
        return self.hf.files if self.hf is not None else frozenset()

    def classes(self, path: Path) -> Mapping[str, str]:
        """Return the classes of a file that Hugging Face's Trainer runs."""
        module = self.hf.project.module(path) if self.hf is not None and path in self.hf.files else None
        return self.hf.classes(module) if self.hf is not None and module is not None else {}

    def own_hooks(self, path: Path) -> Mapping[str, frozenset[str]]:
        """Return by class of a file the methods of its own that the Trainer's run once it has sharded."""
        module = self.hf.project.module(path) if self.hf is not None and path in self.hf.files else None
        return self.hf.own_hooks(module) if self.hf is not None and module is not None else {}

    def given(self) -> Iterator[tuple[str, str, set[str]]]:
        """Yield the parameters that a framework gives a model: the function's key, the name, the kinds."""
        for each in (self.hf, self.lightning, self.composer):
            yield from each.given() if each is not None else ()

    @functools.cached_property
    def _named(self) -> frozenset[Path]:
        known = (each.files for each in (self.lightning, self.composer) if each is not None)
        return self.trainers.union(*known)

    def of_name(self, text: str, place: Place) -> set[str]:
        """Return what a name is of which the source itself says nothing."""
        if place.module.path not in self._named:
            return set()
        known = (each for each in (self.hf, self.lightning, self.composer) if each is not None)
        return {kind for each in known for kind in each.of_name(text, place)}

    def of_call(self, call: ast.Call, place: Place) -> set[str]:
        """Return what a call of a framework's function gives."""
        if self.composer is not None and (found := self.composer.of_call(call, place)):
            return found
        func = method_in(place.module.tree, call.func)
        if func is None or not call.args:
            return set()
        owner = dotted(func.value) or ""
        found = set()
        if self._uses("accelerate", place):
            tree = place.module.tree
            given = [dotted(arg) or _made_as(arg, tree) for arg in call.args]
            if any(isinstance(arg, ast.Starred) for arg in call.args):
                given = given_in(tree, call)
            if func.attr in PREPARES and self._is_one(ACCELERATORS, owner, place):
                found = prepared_by(given, asked_in(tree))
            if func.attr == CLIPS and self._is_one(ACCELERATORS, owner, place):
                found = {NORM}
            found = set() if found and is_of_other_launch(place) else found
        if not found and not isinstance(call.args[0], ast.Starred) and self._uses("fabric", place):
            is_its = self._is_one(FABRICS, owner, place) and not is_fabric_plain(owner, place)
            found = set_up_by(func.attr, has_optimizers=len(call.args) > 1) if is_its else set()
        return found

    def _is_one(self, kind: NamedObjects, owner: str, place: Place) -> bool:
        """Tell whether a name is a framework's object, as its own file says, or another."""
        if owner in {"self", "super()"} and self.hf is not None:
            around = self.hf.project.class_of(place)
            above = classes_above(self.hf.project, around) if around is not None else ()
            return any(map(OF_KINDS[kind.kind].match, above))
        told = self.objects.get(place.module.path, {}).get(kind.kind, frozenset())
        return last_part(owner) in told or is_one(kind, owner, place.module.tree)

    def _uses(self, framework: str, place: Place) -> bool:
        return place.module.path in self.users.get(framework, ())


def _made_as(node: ast.expr, tree: ast.Module) -> str:
    """Return what is made where it is given would be called: ``accelerator.prepare(Net())``."""
    return called_as(ast.unparse(node), modules_in(tree)) if isinstance(node, ast.Call) else ""


def is_fabric_plain(owner: str, place: Place) -> bool:
    """Tell whether the function of a place, or its class, makes a Fabric that shards nothing."""
    function = place.module.definitions.get(place.scope)
    is_own = owner.startswith("self.")
    around = place.module.definitions.get(place.scope.rpartition(".")[0]) if is_own else function
    if around is not None and makes_plain(around.written, owner):
        return True
    assigns = [
        node
        for node in walked(function.node if function is not None else place.module.tree)
        if isinstance(node, ast.Assign) and owner in map(dotted, node.targets)
    ]
    made = assigns[0].value if len(assigns) == 1 else None
    if not isinstance(made, ast.Call) or made.args or last_name(made.func) != "Fabric":
        return False
    given = {name: ast.unparse(value) for name, value in named_arguments(made).items()}
    return len(given) == len(made.keywords) and shards_nothing(given)


def given_to_plain_fabric(call: ast.Call, place: Place) -> list[ast.expr] | None:
    """Return what ``fabric.setup(model, optimizer)`` is given, where that Fabric shards nothing."""
    func = call.func
    if not isinstance(func, ast.Attribute) or func.attr not in SETS_UP or not call.args:
        return None
    owner = dotted(func.value)
    is_hidden = any(isinstance(each, ast.Starred) for each in call.args)
    return None if owner is None or is_hidden or not is_fabric_plain(owner, place) else list(call.args)


def unwrapped(call: ast.Call, place: Place) -> ast.expr | None:
    """Return the model that ``accelerator.unwrap_model(model)`` gives back."""
    func = method_in(place.module.tree, call.func)
    is_unwrapped = func is not None and func.attr == UNWRAPS
    return call.args[0] if is_unwrapped and call.args else None
