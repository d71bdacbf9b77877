"""Names of a file's top level that other functions and files use: ``global model``, ``state.model``."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fsdp_migrate.source.project import dotted


if TYPE_CHECKING:
    from fsdp_migrate.source.project import Module, Place, Project

    Fact = tuple[str, str]


_DEEPEST = 4
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(eq=False)
class Globals:
    """Answers where the names of a place are kept. Reads only."""

    project: Project
    _origins: dict[tuple[object, str], Fact | None] = field(default_factory=dict, repr=False)
    _top_level: dict[tuple[object, str], bool] = field(default_factory=dict, repr=False)
    _said: dict[tuple[object, str], frozenset[str]] = field(default_factory=dict, repr=False)

    def is_said(self, name: str, place: Place) -> bool:
        """Tell whether a function says ``global name``."""
        known = place.module.path, place.scope
        if known not in self._said:
            node = self.project.node(place.module, place.scope) if place.scope else None
            found = (each for each in ast.walk(node) if isinstance(each, ast.Global)) if node else ()
            self._said[known] = frozenset(name for each in found for name in each.names)
        return name in self._said[known]

    def is_top_level(self, name: str, place: Place) -> bool:
        """Tell whether a name at a place is one of its file's top level, and of no function around."""
        known = place.module.path, f"{place.scope} {name}"
        if known not in self._top_level:
            self._top_level[known] = self._is_top_level(name, place)
        return self._top_level[known]

    def _is_top_level(self, name: str, place: Place) -> bool:
        if not _binds(place.module.tree, name):
            return False
        scope = place.scope
        while scope:
            node = self.project.node(place.module, scope)
            for each in ast.walk(node) if isinstance(node, _FUNCTIONS) else ():
                if isinstance(each, ast.arg) and each.arg == name:
                    return False
                if isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Store):
                    return False
            scope = scope.rpartition(".")[0]
        return True

    def origin(self, text: str, place: Place) -> Fact | None:
        """Return the file and the name there of what another file has at its top level, as it is imported."""
        root = text.partition(".")[0]
        if root not in place.module.imports or root in place.module.definitions:
            return None
        known = place.module.path, text
        if known not in self._origins:
            self._origins[known] = self._find(place.module, self.project.qualified(text, place))
        return self._origins[known]

    def _find(self, module: Module, written: str, depth: int = 0) -> Fact | None:
        start, _, name = written.rpartition(".")
        if (not start.strip(".") and not start) or depth > _DEEPEST:
            return None
        for path in self.project.paths(module, start):
            if re.search(rf"\b{re.escape(name)}\b", self.project.texts[path]) is None:
                return None
            found = self.project.module(path)
            if found is None or name in found.definitions:
                return None
            if name in found.imports and not _binds(found.tree, name):
                return self._find(found, found.imports[name], depth + 1)
            return f"{path}:", name
        return None


def _binds(tree: ast.Module, name: str) -> bool:
    targets = [t for node in tree.body if isinstance(node, ast.Assign) for t in node.targets]
    targets += [node.target for node in tree.body if isinstance(node, ast.AnnAssign)]
    return any(dotted(target) == name for target in targets)
