"""Classes of a project's files whose bases lead to a framework's, over files: ``from tools import Mine``."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source.project import Place, dotted
from fsdp_migrate.source.python.heirs import (
    ACCELERATES,
    COMPOSERS,
    FABRICS,
    HUGGING_FACES,
    LIGHTNINGS,
    STRATEGIES,
)


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from fsdp_migrate.source.project import Definition, Module, Project


Heirs = dict[str, frozenset[str]]
"""By the names that imports write the classes of frameworks that those lead to; of own Trainers none."""
_OF_FRAMEWORKS: Final = (ACCELERATES, COMPOSERS, FABRICS, HUGGING_FACES, LIGHTNINGS, STRATEGIES)
_PACKAGES: Final = ("transformers", "trl", "sentence_transformers", "lightning", "composer", "accelerate")
_TRAINERS: Final = (HUGGING_FACES, LIGHTNINGS)
_MADE_OF: Final = ("lightning", "transformers", "trl")
# Text by text, as far as the class names lead: few files have a class of them, and only these are parsed.
# No bases are longer: without an end each `class A(` would be looked at to the end of the text.
_CLASS: Final = re.compile(r"class (\w+)\(([^)]{0,2000})\)")
_WORDS: Final = ("Trainer", "Fabric", "Accelerator", "LightningLite", "FSDPStrategy", "NativeStrategy")
_BASE: Final = re.compile(r"(?:Trainer|Fabric|Accelerator|LightningLite|FSDPStrategy|NativeStrategy)\b")
_DEEPEST: Final = 5


def heirs(project: Project) -> dict[Path, Heirs]:
    """Return by file the classes that it imports from others, and that frameworks' classes stand above."""
    names = _names(project)
    found: dict[Path, Heirs] = {}
    for module in project.parsed(project.holding(names)) if names else ():
        owners = imported(project, module, names)
        told = {written: leads for written, owner in owners if (leads := classes_above(project, owner))}
        found |= {module.path: told} if told else {}
    return found


def of_others(found: Mapping[Path, Heirs]) -> set[Path]:
    """Return the files that have a Lightning Trainer of another one: its class, or what makes it."""
    return {
        path
        for path, told in found.items()
        if any(LIGHTNINGS.match(name) for names in told.values() for name in names)
    }


def strategies_of_others(found: Mapping[Path, Mapping[str, frozenset[str]]]) -> set[Path]:
    """Return the files that have a class of another one which derives from Lightning's FSDP1 strategy."""
    return {path for path, told in found.items() if any(map(STRATEGIES.match, set().union(*told.values())))}


def with_makers(project: Project, found: dict[Path, Heirs]) -> dict[Path, Heirs]:
    """Return the same with the functions of other files that give a Trainer, and its names.

    It is one of Lightning's or of Hugging Face's.

    What they give is one as what a class gives is: ``from setup import make``, ``from setup import trainer``.
    So are the classes that ``type`` makes.
    """
    makers: dict[tuple[Path, str], frozenset[str]] = {}
    for path, text in project.texts.items():
        is_used = "Trainer(" in text and any(package in text for package in _MADE_OF)
        may_make = is_used or "type(" in text
        module = project.module(path) if may_make and any(word in text for word in _WORDS) else None
        if module is not None:
            makers |= {(path, name): leads for name, leads in _making(project, module)}
    names = {name for _, name in makers}
    told = dict(found)
    for module in project.parsed(project.importing(names)) if names else ():
        for written in module.imports.values():
            start, _, last = written.rpartition(".")
            homes = project.paths(module, start) if last in names else []
            leads = next((makers[home, last] for home in homes if (home, last) in makers), None)
            if leads is not None and homes != [module.path]:
                told[module.path] = {**told.get(module.path, {}), written: leads}
    return told


def _making(project: Project, module: Module) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield the functions, and the names at its top, by which a file gives a Trainer."""
    for statement in module.tree.body:
        values: list[tuple[str, ast.expr | None]] = []
        if isinstance(statement, ast.Assign):
            values = [(text, statement.value) for text in map(dotted, statement.targets) if text]
        elif isinstance(statement, ast.FunctionDef):
            bound = {
                text: node.value
                for node in ast.walk(statement)
                if isinstance(node, ast.Assign)
                for text in map(dotted, node.targets)
                if text
            }
            returned = (node.value for node in ast.walk(statement) if isinstance(node, ast.Return))
            values = [(statement.name, bound.get(dotted(each) or "", each)) for each in returned if each]
        for name, value in values:
            leads = _leads_of(project, module, value)
            if leads:
                yield name, leads


def _leads_of(project: Project, module: Module, value: ast.expr | None) -> frozenset[str]:
    """Return the Trainer's class that a call makes an object of, or those above what ``type`` makes."""
    text = dotted(value.func) if isinstance(value, ast.Call) else None
    if text is None or not isinstance(value, ast.Call):
        return frozenset()
    if text == "type":
        bases = value.args[1] if len(value.args) > 1 else None
        names = map(dotted, bases.elts) if isinstance(bases, ast.Tuple) else ()
        return frozenset().union(*(_above(project, module, name) for name in names if name))
    above = _above(project, module, text)
    return frozenset(name for name in above if any(each.match(name) for each in _TRAINERS))


def _above(project: Project, module: Module, text: str) -> frozenset[str]:
    """Return what a class is called that is a framework's, or those that one of the project derives from."""
    owner = project.named(text, Place(module, ""))
    own = classes_above(project, owner) if owner is not None else frozenset()
    named = own | {project.qualified(text, Place(module, ""))}
    return frozenset(name for name in named if any(each.match(name) for each in _OF_FRAMEWORKS))


def _names(project: Project) -> set[str]:
    """Return what the classes are called that may lead to a framework's."""
    if not any(package in text for package in _PACKAGES for text in project.texts.values()):
        return set()
    near = (text for text in project.texts.values() if any(word in text for word in _WORDS))
    found = {name for text in near for name, bases in _CLASS.findall(text) if _BASE.search(bases)}
    if not found:
        return set()
    others = [pair for text in project.texts.values() for pair in _CLASS.findall(text)]
    for _ in range(_DEEPEST):
        wanted = re.compile(rf"\b(?:{'|'.join(sorted(found))})\b")
        more = {name for name, bases in others if wanted.search(bases)} - found
        if not more:
            break
        found |= more
    return found


def imported(project: Project, module: Module, names: set[str]) -> Iterator[tuple[str, Definition]]:
    """Yield what a file has of other files by some names, as its imports write them: also ``module.Name``."""
    place = Place(module, "")
    for name, written in module.imports.items():
        if written.rpartition(".")[2] in names:
            texts = [name]
        else:
            texts = [f"{name}.{each}" for each in sorted(names)] if project.paths(module, written) else []
        for text in texts:
            owner = project.named(text, place)
            if owner is not None and owner.module is not module:
                yield project.qualified(text, place), owner


def classes_above(project: Project, owner: Definition, depth: int = 0) -> frozenset[str]:
    """Return the classes of frameworks that a class of the project derives from."""
    if not isinstance(owner.node, ast.ClassDef) or depth == _DEEPEST:
        return frozenset()
    place = Place(owner.module, "")
    bases = (base.value if isinstance(base, ast.Subscript) else base for base in owner.node.bases)
    names = (project.qualified(dotted(base) or "?", place) for base in bases)
    found = frozenset(name for name in names if any(each.match(name) for each in _OF_FRAMEWORKS))
    return found.union(*(classes_above(project, each, depth + 1) for each in project.bases(owner)))


def derives(project: Project, owner: Definition, base: re.Pattern[str], depth: int = 0) -> bool:
    """Tell whether a class of the project derives from one of some full names."""
    if not isinstance(owner.node, ast.ClassDef) or depth == _DEEPEST:
        return False
    place = Place(owner.module, "")
    names = (project.qualified(dotted(each) or "?", place) for each in owner.node.bases)
    return any(map(base.match, names)) or any(
        derives(project, each, base, depth + 1) for each in project.bases(owner)
    )
