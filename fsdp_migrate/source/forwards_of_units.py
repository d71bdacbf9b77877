"""Where a module calls, or hands on, the forward of a part of itself that FSDP1 shards on its own.

FSDP1's wrapper had a forward that gathered. FSDP2 gathers in hooks of the call, and the forward alone finds
shards: the first step raises.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source.heirs import derives
from fsdp_migrate.source.project import is_a_test
from fsdp_migrate.source.python.links import NOTHING
from fsdp_migrate.source.python.trainer_models import COMPOSERS_MODEL
from fsdp_migrate.source.state_methods import is_a_module
from fsdp_migrate.source.units_of_parts import LISTS, unit_classes


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from fsdp_migrate.source.composer_project import ComposerProject
    from fsdp_migrate.source.project import Module, Project
    from fsdp_migrate.source.python.links import Links


_ASKED: Final = re.compile(r"[\w\])]\.forward\b")
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


def with_unit_forwards(
    project: Project, composer: ComposerProject | None, links: Mapping[Path, Links]
) -> dict[Path, Links]:
    """Tell each file where it asks such a part for its forward.

    ``composer``: the files in which Composer shards, which makes a unit of each child of its model.
    """
    units = unit_classes(project.texts.values())
    composed = composer.files if composer is not None else ()
    told = dict(links)
    for path, text in project.texts.items() if units or composed else ():
        if _ASKED.search(text) is None or is_a_test(path) or (module := project.module(path)) is None:
            continue
        found = {each for parts in _parts_in(module, units) for each in parts.asked()}
        if path in composed:
            found |= {each for parts in _children_in(project, module) for each in parts.asked()}
        if found:
            told[path] = replace(links.get(path, NOTHING), unit_forwards=frozenset(found))
    return told


@dataclass(eq=False)
class _Parts:
    """The attributes of a module's class that are units, or lists of units."""

    owner: ast.ClassDef
    single: set[str] = field(default_factory=set)
    lists: set[str] = field(default_factory=set)

    def asked(self) -> Iterator[tuple[int, str]]:
        """Yield the units whose forward its methods take, each as its line and its text."""
        for function in self.owner.body if self.single or self.lists else ():
            if not isinstance(function, _FUNCTIONS):
                continue
            names = self._names(function)
            for node in ast.walk(function):
                if isinstance(node, ast.Attribute) and node.attr == "forward" and self._is(node.value, names):
                    yield node.value.lineno, "".join(ast.unparse(node.value).split())

    def _is(self, node: ast.expr, names: set[str]) -> bool:
        if isinstance(node, ast.Name):
            return node.id in names
        if isinstance(node, ast.Subscript):
            return _attribute(node.value) in self.lists
        return _attribute(node) in self.single

    def _names(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
        """Return the names that stand for a unit, and for nothing else, in a method."""
        given: dict[str, list[bool]] = {}
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                given.setdefault(node.targets[0].id, []).append(self._is(node.value, set()))
            elif isinstance(node, (ast.For, ast.comprehension)):
                item = _item(node)
                for name in (each.id for each in ast.walk(node.target) if isinstance(each, ast.Name)):
                    is_one = item is not None and item[0] == name and _attribute(item[1]) in self.lists
                    given.setdefault(name, []).append(is_one)
        return {name for name, those in given.items() if all(those)}


def _item(loop: ast.For | ast.comprehension) -> tuple[str, ast.expr] | None:
    """Return the name of a loop's items, and the list: ``for i, b in enumerate(self.blocks)``."""
    target, over = loop.target, loop.iter
    if isinstance(over, ast.Call):
        called = over.func.attr if isinstance(over.func, ast.Attribute) else ast.unparse(over.func)
        if called == "enumerate" and isinstance(target, ast.Tuple) and over.args:
            target, over = target.elts[-1], over.args[0]
        elif called in {"items", "values"} and isinstance(over.func, ast.Attribute):
            target = target.elts[-1] if isinstance(target, ast.Tuple) else target
            over = over.func.value
        elif called == "reversed" and over.args:
            over = over.args[0]
    over = over.value if isinstance(over, ast.Subscript) and isinstance(over.slice, ast.Slice) else over
    return (target.id, over) if isinstance(target, ast.Name) else None


def _attribute(node: ast.expr) -> str | None:
    is_own = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    return node.attr if is_own and isinstance(node, ast.Attribute) else None


def _classes(node: ast.AST) -> set[str]:
    """Return the last names of what is called in an expression, those of classes alone."""
    calls = (each.func for each in ast.walk(node) if isinstance(each, ast.Call))
    names = (func.attr if isinstance(func, ast.Attribute) else ast.unparse(func) for func in calls)
    return {name for name in names if name[:1].isupper()}


def _parts_in(module: Module, units: frozenset[str]) -> Iterator[_Parts]:
    """Yield the parts of the classes of a file that are made of what policies name, and of nothing else."""
    for each in module.definitions.values() if units else ():
        if not isinstance(each.node, ast.ClassDef) or not is_a_module(module, each.name):
            continue
        made: dict[str, set[str]] = {}
        given = [pair for node in ast.walk(each.node) for pair in _given(node)]
        # What a method puts into a name first: `layers.append(Block())`, then `nn.ModuleList(layers)`.
        for name, value in sorted(given, key=lambda pair: pair[0].startswith("self.")):
            names = (node.id for node in ast.walk(value) if isinstance(node, ast.Name))
            made.setdefault(name, set()).update(_classes(value), *(made.get(inner, ()) for inner in names))
        parts = _Parts(each.node)
        for name, classes in made.items():
            if name.startswith("self.") and classes - LISTS and classes - LISTS <= units:
                (parts.lists if classes & LISTS else parts.single).add(name.removeprefix("self."))
        yield parts


def _given(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield names, and ``self.name``, with what they are made of: of a list what is appended to it, too."""
    if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
        pairs = [
            (each, node.value) for each in (node.targets if isinstance(node, ast.Assign) else [node.target])
        ]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append":
        pairs = [(node.func.value, each) for each in node.args]
    else:
        pairs = []
    for each, value in pairs:
        own = _attribute(each)
        if own is not None or isinstance(each, ast.Name):
            yield (f"self.{own}" if own is not None else ast.unparse(each)), value


def _children_in(project: Project, module: Module) -> Iterator[_Parts]:
    """Yield the children of the classes of a file that are models of Composer's."""
    for each in module.definitions.values():
        if isinstance(each.node, ast.ClassDef) and derives(project, each, COMPOSERS_MODEL):
            given = (name for node in ast.walk(each.node) for name, _ in _given(node))
            own = {name.removeprefix("self.") for name in given if name.startswith("self.")}
            yield _Parts(each.node, single=own)
