"""Registries of a project: what decorators and calls put into an object, to be made by a name from a config.

``@STRATEGIES.register_module()`` above a class, ``WRAPPERS.register("fsdp", wrap)``, and then
``STRATEGIES.build(cfg)``. Whether the registry's class is the project's or another package's does not matter.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fsdp_migrate.source.project import Place, dotted
from fsdp_migrate.source.python.argument_places import every_argument


if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fsdp_migrate.source.project import Definition, Module, Project
    from fsdp_migrate.source.project_globals import Globals

    Fact = tuple[str, str]


_PUTS = re.compile(r"(?i)regist|^add(?:_\w+)?$")
_GETS = re.compile(r"(?i)^(?:get|lookup|resolve)(?:_|$)|^__getitem__$")
# What others do is no model: `names()`, `remove_all()`.
_MAKES = re.compile(
    r"(?i)^__call__$"
    r"|(?:^|_)(?:apply|build|call|construct|create|dispatch|init|instance|instantiate|load|make|new|parallelize"
    r"|prepare|produce|run|setup|shard|wrap)(?:_|$)"
)
# Nor is it what tells what a registry has: `get_names()`.
_TELLS = re.compile(r"(?i)_(?:all|available|choices|doc|dict|info|keys|len|list|name|names|options|size)$")


@dataclass(eq=False)
class Registries:
    """Answers what stands in a registry. Filled file by file, as these are gone through."""

    project: Project
    globals: Globals
    held: dict[Fact, list[Definition]] = field(default_factory=dict)
    """By the file and the name of a registry what is put into it."""
    by_functions: dict[Path, list[Definition]] = field(default_factory=dict)
    """By file of a decorator, a function, what it stands above."""

    def note(self, module: Module) -> Iterator[Fact]:
        """Note what a file puts into registries, and yield these."""
        for definition in module.definitions.values():
            if definition.owner is None:
                for each in definition.node.decorator_list:
                    func = each.func if isinstance(each, ast.Call) else each
                    yield from self._put(func, definition, module)
        for node in module.tree.body:
            call = node.value if isinstance(node, ast.Expr) else None
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
                yield from self._given(call, module)

    def at(self, func: ast.expr, place: Place) -> tuple[list[Definition], bool]:
        """Return what an entry or a method of a registry may make, and whether it may give that itself."""
        if isinstance(func, ast.Subscript):
            return self._held_by(dotted(func.value) or "", place), False
        start, _, last = (dotted(func) or "").rpartition(".")
        is_given_itself = _GETS.search(last) is not None
        if _PUTS.search(last) or _TELLS.search(last) or not (is_given_itself or _MAKES.search(last)):
            return [], False
        return self._held_by(start, place), is_given_itself

    def _held_by(self, text: str, place: Place) -> list[Definition]:
        key = self._key(text, place) if text and self.held else None
        return self.held.get(key, []) if key is not None else []

    def _put(self, func: ast.expr, definition: Definition, module: Module) -> Iterator[Fact]:
        text, place = dotted(func) or "", Place(module, "")
        by = self.project.named(text, place) if text else None
        if by is not None and not isinstance(by.node, ast.ClassDef) and by.owner is None:
            self.by_functions.setdefault(by.module.path, []).append(definition)
            return
        start = text.rpartition(".")[0] if _PUTS.search(text.rpartition(".")[2]) else text
        key = self._key(start, place) if start else None
        if key is not None:
            self.held.setdefault(key, []).append(definition)
            yield key

    def _given(self, call: ast.Call, module: Module) -> Iterator[Fact]:
        """Note ``WRAPPERS.register("fsdp", wrap)``, and ``WRAPPERS.register("fsdp")(wrap)``."""
        assert isinstance(call.func, ast.Attribute)
        start, place = dotted(call.func.value), Place(module, "")
        key = self._key(start, place) if start and _PUTS.search(call.func.attr) else None
        for each in every_argument(call) if key is not None else ():
            text = dotted(each)
            made = self.project.named(text, place) if text is not None else None
            if made is not None and key is not None:
                self.held.setdefault(key, []).append(made)
                yield key

    def _key(self, text: str, place: Place) -> Fact | None:
        """Return the file and the name of a registry: of what stands at a file's top level, or of a class."""
        owner = self.project.named(text, place)
        if owner is not None:
            return (owner.key, "") if isinstance(owner.node, ast.ClassDef) else None
        origin = self.globals.origin(text, place)
        if origin is None and "." not in text and self.globals.is_top_level(text, place):
            return f"{place.module.path}:", text
        return origin
