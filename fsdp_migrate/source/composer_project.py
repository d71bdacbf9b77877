"""Composer's callbacks and algorithms over the files of a project: what ``state.model`` is in them."""

from __future__ import annotations

import ast
import functools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fsdp_migrate.source.asked_around import ASKS_COMPOSER, asked_around, asks
from fsdp_migrate.source.files import CONFIGS, SUFFIXES, find_sources
from fsdp_migrate.source.heirs import classes_above, derives
from fsdp_migrate.source.project import Place, dotted
from fsdp_migrate.source.python.argument_places import named_arguments, placed_names
from fsdp_migrate.source.python.asked_as_models import asked_in
from fsdp_migrate.source.python.heirs import COMPOSERS
from fsdp_migrate.source.python.held import EACH, attribute, put
from fsdp_migrate.source.python.lightning_models import is_named_as_part
from fsdp_migrate.source.python.optimizers import OF_A_MODEL
from fsdp_migrate.source.python.trainer_models import (
    COMPOSED,
    COMPOSERS_MODEL,
    INSTANTIATES,
    OF_COMPOSERS_MODEL,
    SETTINGS,
    is_composers_model,
)
from fsdp_migrate.source.trained_names import TrainedNames, model_given


if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from pathlib import Path

    from fsdp_migrate.source.project import Module, Project


_CALLBACK = re.compile(rb"^[^#\n]*\b(?:FSDP2Migration|fsdp2_migration)\b", re.MULTILINE)
_BASES = re.compile(r"^composer\b(?:\.\w+)*\.\w*(?:Callback|Algorithm)$")
# No bases are longer: without an end each `class A(` would be looked at to the end of the text.
_CLASSES = re.compile(
    r"\bclass \w+\([^)]{0,2000}?(?:Callback|Algorithm|Composer(?:Model|Classifier)|HuggingFaceModel)\b"
)
_TRAINER = re.compile(r"\bTrainer\([^()]*\*\*|\bclass \w+\([^)]{0,200}?\bTrainer\b")
_TRAINERS = re.compile(r"^class (\w+)\([^)]{0,200}?\bTrainer\b", re.MULTILINE)
_BY_HYDRA = re.compile(r"\btrainer\b[^\n=]*=[^\n=]*\binstantiate\([^()]*\bmodel\s*=")
_CLASS = re.compile(r"^class (\w+)\([^)]{0,2000}?(?:Callback|Algorithm)\b", re.MULTILINE)
_IMPORTS = re.compile(r"^[ \t]*(?:from|import)\s+composer\b", re.MULTILINE)
# Composer shards behind these events: algorithms change the model in the first.
_BEFORE = frozenset({"__init__", "before_load", "init", "match"})
_IS_NEW = re.compile(r"\bFSDP2Config\b|\bfsdp2_config\b|['\"]fsdp2['\"]")
_BY_NAME = re.compile(r"\bparallelism_config['\"]?\]?\s*[:=]\s*[A-Za-z_]")
_OF_FSDP1 = re.compile(r"['\"]fsdp['\"]\s*:|\bFSDPConfig\(|\bfsdp\s*=\s*(?!None\b)\w")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_STATE = attribute("state")


def name_callback(paths: Iterable[str | os.PathLike[str]]) -> bool:
    """Tell whether sources or configs at and below paths name ``FSDP2Migration``, Composer's callback.

    Example:
        >>> name_callback(["adapters/composer_callback.py"]), name_callback(["fsdp_migrate/source/files.py"])
        (True, False)
    """
    return any(map(_names_callback, find_sources(paths, SUFFIXES | CONFIGS)))


def _names_callback(path: Path) -> bool:
    try:
        return path.suffix in SUFFIXES | CONFIGS and _CALLBACK.search(path.read_bytes()) is not None
    except OSError:
        return False


def without_state(kinds: Collection[str]) -> set[str]:
    """Return what something may be, what the state of Composer's Trainer holds left out.

    Example:
        >>> without_state({"fsdp", ".state>.model>fsdp"})
        {'fsdp'}
    """
    return {kind for kind in kinds if not kind.startswith(f"{_STATE}>.")}


def run_by_composer(project: Project, around: Iterable[str | os.PathLike[str]]) -> set[Path]:
    """Return the files with callbacks or algorithms of a project that asks Composer for FSDP1.

    ``around``: where configs are, which may ask for it.
    """
    texts = project.texts
    users = {path for path, text in texts.items() if "composer" in text and _IMPORTS.search(text)}
    found = {path for path in users if _CLASSES.search(texts[path])}
    trains = {path for path in users if any(name in texts[path] for name in SETTINGS)}
    # What has the settings in a dict, or a class of the project's own, and what hydra makes a Trainer of.
    trains |= {path for path in users if _TRAINER.search(texts[path])}
    trains |= {path for path, text in texts.items() if users and _BY_HYDRA.search(text)}
    if not (found or trains) or any(_IS_NEW.search(texts[path]) for path in users):
        return set()
    is_asked = any(asks(texts[path], ASKS_COMPOSER) or _asks_by_name(texts[path]) for path in users)
    if not is_asked and not asked_around(around, ASKS_COMPOSER):
        return set()
    names = {name for path in found for name in _CLASS.findall(texts[path])}
    heirs = {name for path in users for name in _TRAINERS.findall(texts[path])}
    known = names | heirs
    return found | trains | set(project.importing(known) if known else ())


def _asks_by_name(text: str) -> bool:
    """Tell whether a source gives the Trainer settings by a name, and has those of FSDP1 for it."""
    return _BY_NAME.search(text) is not None and _OF_FSDP1.search(text) is not None


def shards(project: Project, call: ast.Call, place: Place) -> bool:
    """Tell whether a call makes a Trainer of Composer's that is given FSDP's settings, or may be."""
    func = dotted(call.func) or "?"
    settings = [each.value for each in call.keywords if each.arg in SETTINGS]
    if settings:
        is_none = all(isinstance(each, ast.Constant) and each.value is None for each in settings)
        return not is_none and COMPOSERS.match(project.qualified(func, place) or "") is not None
    if INSTANTIATES.search(func) and "model" in named_arguments(call):
        return any("trainer" in ast.unparse(each).lower() for each in call.args[:1])
    named = project.named(func, place)
    above = {func} if named is None else set(classes_above(project, named))
    is_open = named is not None or any(each.arg is None for each in call.keywords)
    is_its = any(COMPOSERS.match(project.qualified(each, place) or each) for each in above)
    return is_open and is_its


def _held_by_state() -> set[str]:
    return put(attribute("model"), COMPOSED) | put(attribute("optimizers"), put(EACH, OF_A_MODEL))


@dataclass(eq=False)
class ComposerProject:
    """Answers for the files of a project that Composer runs, which is asked for FSDP1."""

    project: Project
    files: frozenset[Path]
    _known: dict[tuple[Path, str], bool] = field(default_factory=dict)

    @functools.cached_property
    def _names(self) -> TrainedNames:
        return TrainedNames(self.project, self._composed)

    def of_name(self, text: str, place: Place) -> set[str]:
        """Return what a name is that a Trainer was given, below that line."""
        if place.module.path not in self.files:
            return set()
        is_one = is_composers_model(text) or self._names.is_one(text, place)
        return set(COMPOSED) if is_one or self._is_part(text, place) else set()

    def of_call(self, call: ast.Call, place: Place) -> set[str]:
        """Return what a Trainer is that a call makes: its state has the model."""
        is_one = place.module.path in self.files and shards(self.project, call, place)
        return put(_STATE, put(attribute("model"), COMPOSED)) if is_one else set()

    def _is_part(self, text: str, place: Place) -> bool:
        """Tell whether it is ``self`` of a ComposerModel, or a part of it, where the parts are sharded."""
        owner, _, method = place.scope.rpartition(".")
        if OF_COMPOSERS_MODEL.search(method) is None or not owner:
            return False
        if not is_named_as_part(text, asked_in(place.module.tree, or_called=False)):
            return False
        named = place.module.definitions.get(owner)
        return named is not None and derives(self.project, named, COMPOSERS_MODEL)

    def _composed(self, call: ast.Call, made: Mapping[str, ast.Call], place: Place) -> str | None:
        """Return the name of the model that Composer's Trainer shards."""
        return model_given(call) if shards(self.project, call, place) else None

    def given(self) -> Iterator[tuple[str, str, set[str]]]:
        """Yield what the methods of callbacks and algorithms are given: a state, which has the model."""
        for module in filter(None, map(self.project.module, sorted(self.files))):
            for each in module.definitions.values():
                owner, _, method = each.name.rpartition(".")
                if method in _BEFORE or not isinstance(each.node, _FUNCTIONS) or not self._is(module, owner):
                    continue
                names = placed_names(each.node)
                yield from ((each.key, name, _held_by_state()) for name in names if name == "state")

    def _is(self, module: Module, name: str) -> bool:
        key = module.path, name
        if name and key not in self._known:
            owner = module.definitions.get(name)
            self._known[key] = owner is not None and derives(self.project, owner, _BASES)
        return self._known.get(key, False)
