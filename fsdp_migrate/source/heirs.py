"""Classes of a project's files whose bases lead to a framework's, over files: ``from tools import Mine``."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source.project import Place, dotted
from fsdp_migrate.source.python.heirs import ACCELERATES, COMPOSERS, FABRICS, HUGGING_FACES, LIGHTNINGS


if TYPE_CHECKING:
    from pathlib import Path

    from fsdp_migrate.source.project import Definition, Module, Project


Heirs = dict[str, frozenset[str]]
"""By the names that imports write the classes of frameworks that those lead to."""
_OF_FRAMEWORKS: Final = (ACCELERATES, COMPOSERS, FABRICS, HUGGING_FACES, LIGHTNINGS)
_PACKAGES: Final = ("transformers", "trl", "sentence_transformers", "lightning", "composer", "accelerate")
# Text by text, as far as the class names lead: few files have a class of them, and only these are parsed.
# No bases are longer: without an end each `class A(` would be looked at to the end of the text.
_CLASS: Final = re.compile(r"class (\w+)\(([^)]{0,2000})\)")
_WORDS: Final = ("Trainer", "Fabric", "Accelerator", "LightningLite")
_BASE: Final = re.compile(r"(?:Trainer|Fabric|Accelerator|LightningLite)\b")
_DEEPEST: Final = 5


def heirs(project: Project) -> dict[Path, Heirs]:
    """Return by file the classes that it imports from others, and that frameworks' classes stand above."""
    names = _names(project)
    found: dict[Path, Heirs] = {}
    for path in project.holding(names) if names else ():
        module = project.module(path)
        told = _imported(project, module, names) if module is not None else {}
        found |= {path: told} if told else {}
    return found


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


def _imported(project: Project, module: Module, names: set[str]) -> Heirs:
    """Return the classes that a file imports, or has by a module that it imports."""
    place, found = Place(module, ""), Heirs()
    for name, written in module.imports.items():
        if written.rpartition(".")[2] in names:
            texts = [name]
        else:
            texts = [f"{name}.{each}" for each in names] if project.paths(module, written) else []
        for text in texts:
            owner = project.named(text, place)
            if owner is not None and owner.module is not module and (leads := classes_above(project, owner)):
                found[project.qualified(text, place)] = leads
    return found


def classes_above(project: Project, owner: Definition, depth: int = 0) -> frozenset[str]:
    """Return the classes of frameworks that a class of the project derives from."""
    if not isinstance(owner.node, ast.ClassDef) or depth == _DEEPEST:
        return frozenset()
    place = Place(owner.module, "")
    bases = (base.value if isinstance(base, ast.Subscript) else base for base in owner.node.bases)
    names = (project.qualified(dotted(base) or "?", place) for base in bases)
    found = frozenset(name for name in names if any(each.match(name) for each in _OF_FRAMEWORKS))
    return found.union(*(classes_above(project, each, depth + 1) for each in project.bases(owner)))
