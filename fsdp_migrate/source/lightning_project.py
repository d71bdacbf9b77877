"""Lightning's models over the files of a project: what callbacks are given, and what modules give on."""

from __future__ import annotations

import ast
import functools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fsdp_migrate.source.asked_around import ASKS_LIGHTNING, asked_around, asks_by_key
from fsdp_migrate.source.heirs import derives
from fsdp_migrate.source.own_methods import run_in_hooks
from fsdp_migrate.source.project import dotted
from fsdp_migrate.source.python.argument_places import placed_names
from fsdp_migrate.source.python.asked_as_models import asked_in
from fsdp_migrate.source.python.held import EACH, attribute, put
from fsdp_migrate.source.python.lightning_models import (
    MODULE,
    SHARDED,
    TRAINER,
    UNITS,
    asking_for_fsdp1,
    has_option,
    is_named_as_part,
    is_run_elsewhere,
    is_run_sharded,
    is_trainers_model,
    using_lightning,
)
from fsdp_migrate.source.python.optimizers import OF_A_MODEL
from fsdp_migrate.source.trained_names import TrainedNames, model_given


if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from fsdp_migrate.source.project import Definition, Module, Place, Project


_CALLBACK = re.compile(r"^(?:lightning|pytorch_lightning)(?:\.\w+)*\.\w*(?:Callback|Checkpoint)$")
# No bases are longer: without an end each `class A(` would be looked at to the end of the text.
_CALLBACKS = re.compile(r"\bclass \w+\([^)]{0,2000}?(?:Callback|Checkpoint)\b")
_MODULES = re.compile(r"\bclass \w+\([^)]{0,2000}?\bLightningModule\b")
_READS_CONFIGS = re.compile(r"\bLightningCLI[()]|\binstantiate\(")
_NAMES_TRAINER = re.compile(
    r"_target_['\"]?[ \t]*:[ \t]*['\"]?(?:pytorch_lightning|lightning(?:\.pytorch)?)\.(?:trainer\.)?Trainer\b"
    r"[\s\S]*\bFSDPStrategy\b"
)
_FITS = re.compile(r"\btrainer\.fit\(\s*[\w.]")
# Their Trainers fit as well, in names that are the same.
_IS_ANOTHERS = re.compile(r"^[ \t]*(?:from|import)\s+(?:composer|keras)\b", re.MULTILINE)
_TRAINER = re.compile(r"\bTrainer\(")
# A project's own, of whatever name, too: `trainer = SimpleTrainer(config)`.
_ANY_TRAINER = re.compile(r"\bTrainer\(|\btrainer\s*=\s*(?:\w+\.)*\w+Trainer\(")
# What a config says is handed on by a name: `strategy=cfg.trainer.strategy`, `Trainer(**cfg.trainer)`.
_HANDS_ON = re.compile(
    r"\bstrategy\s*=\s*(?!(?:None|True|False)\b)[A-Za-z_][\w.]*(?:\[[^\]\n]*\]|\.get\([^)\n]*\))*\s*[,)]"
    r"|\bTrainer\([^()]*\*\*"
)
# The key of a config whose value is the strategy: `strategy=cfg.trainer.distributed_backend`.
_KEY = re.compile(
    r"\bstrategy\s*=\s*[A-Za-z_]\w*(?:\.\w+|\[['\"]\w+['\"]\])*?(?:\.|\[['\"])(\w+)(?:['\"]\])?\s*[,)\n]"
)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# `self`, the Trainer, and the LightningModule.
_PLACE_OF_MODULE = 2
_OPTIMIZER = "optimizer"


def run_by_lightning(project: Project, around: Iterable[str | os.PathLike[str]]) -> set[Path]:
    """Return the files with callbacks or LightningModules that a Trainer may run which shards by FSDP1.

    Modules, and what fits them, only where the strategy and ``fit`` are not seen in one file: a config
    chooses them, as ``LightningCLI`` has it, or a function makes the Trainer. Others are followed from
    ``fit``.
    ``around``: where those configs are.
    """
    texts = project.texts
    users = {path: texts[path] for path in using_lightning(texts)}
    asking = asking_for_fsdp1(users)
    # What hydra reads may be run by a file that has Lightning by a config alone.
    reads = bool(users) and any(map(_READS_CONFIGS.search, texts.values()))
    reads = reads or any(map(_hands_on, users.values()))
    # A config that names the Trainer itself is read by what makes one of it, wherever that is.
    reads = reads or (bool(users) and asked_around(around, _NAMES_TRAINER))
    if not asking and not (reads and _is_asked(texts, users, around)):
        return set()
    is_open = reads or not all(".fit(" in users[path] for path in asking)
    found = {path for path, text in users.items() if _CALLBACKS.search(text)}
    if not is_open:
        return found
    fits = {path for path, text in texts.items() if _FITS.search(text) and not _is_by_others(text)}
    # One whose file makes its only Trainer without a strategy is that one's, where no other file takes it.
    modules = {path for path, text in users.items() if _MODULES.search(text)}
    return found | fits | {path for path in modules if path in asking or not _is_alone(project, path)}


def wraps(texts: Mapping[Path, str], around: Iterable[str | os.PathLike[str]]) -> bool:
    """Tell whether a project may have Lightning's FSDP1 wrap parts of a module, which are units then."""
    return any(map(UNITS.search, texts.values())) or asked_around(around, UNITS)


def _is_asked(
    texts: Mapping[Path, str], users: Mapping[Path, str], around: Iterable[str | os.PathLike[str]]
) -> bool:
    """Tell whether a config asks for the strategy, or an option of the project that another file reads."""
    if any(map(has_option, texts.values())) or asked_around(around, ASKS_LIGHTNING):
        return True
    names = {name for text in users.values() for name in _KEY.findall(text)} - {"strategy"}
    return bool(names) and asked_around(around, asks_by_key(names))


def _is_alone(project: Project, path: Path) -> bool:
    """Tell whether a file fits its modules by a Trainer without a strategy, and no other file has them."""
    text = project.texts[path]
    makes = _TRAINER.search(text) is not None and ".fit(" in text and "strategy" not in text
    if not makes or _hands_on(text):
        return False
    names = re.findall(r"\bclass (\w+)\([^)]{0,2000}?\bLightningModule\b", text)
    return not any(other != path for name in names for other in project.holding([name]))


def _is_by_others(text: str) -> bool:
    """Tell whether a file makes its Trainer itself, and gives it no strategy that comes from elsewhere."""
    makes_it = _ANY_TRAINER.search(text) is not None and not _hands_on(text)
    return makes_it or _IS_ANOTHERS.search(text) is not None


def _hands_on(text: str) -> bool:
    return _TRAINER.search(text) is not None and _HANDS_ON.search(text) is not None


@dataclass(eq=False)
class LightningProject:
    """Answers for the files of a project that Lightning runs, of which one asks it for FSDP1."""

    project: Project
    files: frozenset[Path]
    has_units: bool = False
    """Whether a policy wraps parts of modules, too."""
    _classes: dict[Path, dict[str, re.Pattern[str]]] = field(default_factory=dict)

    @functools.cached_property
    def _names(self) -> TrainedNames:
        return TrainedNames(self.project, _fitted)

    @functools.cached_property
    def mixins(self) -> Mapping[Path, frozenset[str]]:
        """By file the classes that stand above LightningModules, and derive from none themselves."""
        found: dict[Path, frozenset[str]] = {}
        for module in filter(None, map(self.project.module, sorted(self.files))):
            for each in module.definitions.values():
                is_module = isinstance(each.node, ast.ClassDef) and self._is(module, each.name, MODULE)
                for base in self.project.bases(each) if is_module else ():
                    home = base.module
                    if not self._is(home, base.name, MODULE):
                        found[home.path] = found.get(home.path, frozenset()) | {base.name}
        return found

    @functools.cached_property
    def own_hooks(self) -> Mapping[Path, Mapping[str, frozenset[str]]]:
        """By file and class the methods of their own that hooks of LightningModules run."""
        modules = filter(None, map(self.project.module, sorted(self.files)))
        owners = [
            each
            for module in modules
            for each in module.definitions.values()
            if isinstance(each.node, ast.ClassDef) and self._is(module, each.name, MODULE)
        ]
        found: dict[Path, dict[str, frozenset[str]]] = {}
        for key, names in run_in_hooks(self.project, owners, is_run_sharded, is_run_elsewhere).items():
            path, name = self.project.split(key)
            found.setdefault(path, {})[name] = names
        return found

    def given(self) -> Iterator[tuple[str, str, set[str]]]:
        """Yield what the methods of callbacks are given: the method, the name, what it is."""
        held = put(attribute("optimizers"), put(EACH, OF_A_MODEL))
        for module in filter(None, map(self.project.module, sorted(self.files))):
            for each in module.definitions.values():
                owner, _, method = each.name.rpartition(".")
                if not owner or not is_run_sharded(method):
                    continue
                names, is_callback = _names(each), self._is(module, owner, _CALLBACK)
                if is_callback and len(names) > _PLACE_OF_MODULE:
                    yield each.key, names[_PLACE_OF_MODULE], set(SHARDED)
                    yield each.key, names[_PLACE_OF_MODULE - 1], held
                if _OPTIMIZER in names and (is_callback or self._is_module(module, owner)):
                    yield each.key, _OPTIMIZER, set(OF_A_MODEL)

    def of_name(self, text: str, place: Place) -> set[str]:
        """Return what the Trainer's model is, and ``self`` of a LightningModule where it is sharded."""
        if place.module.path not in self.files:
            return set()
        if is_trainers_model(text):
            return {"fsdp", "other"}
        if self._names.is_one(text, place):
            return set(SHARDED)
        owner, _, method = place.scope.rpartition(".")
        own = self.own_hooks.get(place.module.path, {}).get(owner, ())
        is_run = is_run_sharded(method) or method in own
        if not is_run or not is_named_as_part(text, asked_in(place.module.tree, or_called=False)):
            return set()
        return set(SHARDED) if self._is_module(place.module, owner) else set()

    def _is_module(self, module: Module, name: str) -> bool:
        """Tell whether a class is a LightningModule's, or one that such a class derives from as well."""
        return self._is(module, name, MODULE) or name in self.mixins.get(module.path, ())

    def _is(self, module: Module, name: str, base: re.Pattern[str]) -> bool:
        if not name:
            return False
        known = self._classes.setdefault(module.path, {})
        if name not in known:
            owner = module.definitions.get(name)
            found = (each for each in (_CALLBACK, MODULE) if owner and derives(self.project, owner, each))
            known[name] = next(found, re.compile(""))
        return known[name] is base


def _fitted(call: ast.Call, made: Mapping[str, ast.Call], place: Place) -> str | None:
    """Return the name of the model that ``trainer.fit(model)`` shards."""
    func = call.func
    is_fit = isinstance(func, ast.Attribute) and func.attr == "fit"
    owner = dotted(func.value) or "" if is_fit and isinstance(func, ast.Attribute) else ""
    return model_given(call) if is_fit and TRAINER.search(owner) else None


def _names(definition: Definition) -> list[str]:
    return placed_names(definition.node) if isinstance(definition.node, _FUNCTIONS) else []
