"""Functions and classes that are picked out of dicts and lists: ``TASKS[name](model)``."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fsdp_migrate.source.project import Place, dotted
from fsdp_migrate.source.project_scopes import scopes_of


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.project import Definition, Module, Project
    from fsdp_migrate.source.project_globals import Globals

    Values = dict[tuple[str, str], list[tuple[ast.expr, Place]]]


_GIVES_ONE = frozenset({"get", "pop"})
_GIVES_ALL = frozenset({"items", "values"})
_PUTS_LAST = frozenset({"append", "insert"})


@dataclass(eq=False)
class PickedFunctions:
    """Answers what may be picked out of a container of functions. Reads only."""

    project: Project
    globals: Globals
    _values: dict[Module, Values] = field(default_factory=dict, repr=False)
    _registered: dict[tuple[object, str], list[Definition]] = field(default_factory=dict, repr=False)

    def of(self, node: ast.expr, place: Place) -> list[tuple[ast.expr, Place]]:
        """Return the functions' names that an expression, or the target of a loop around, may stand for."""
        name = dotted(_container(node) or _gone_through(node, place) or node)
        if name is None or name == dotted(node):
            return []
        module, scope, text = self._where(name, place)
        found = self._held(module).get((scope, text), [])
        return found or self._held(module).get(("", text), [])

    def registered(self, node: ast.expr, place: Place) -> list[Definition]:
        """Return what decorators put into the container that an expression picks out of."""
        container = _container(node)
        name = dotted(container) if container is not None else None
        if name is None:
            return []
        module, _, text = self._where(name, place)
        known = module.path, text
        if known not in self._registered:
            self._registered[known] = [
                each for by in _registrars(module, text) for each in self._decorated(module, by)
            ]
        return self._registered[known]

    def _where(self, name: str, place: Place) -> tuple[Module, str, str]:
        origin = self.globals.origin(name, place)
        if origin is not None:
            module = self.project.module(self.project.split(f"{origin[0]}x")[0])
            if module is not None:
                return module, "", origin[1]
        return place.module, place.scope, name

    def _held(self, module: Module) -> Values:
        if module not in self._values:
            found: Values = {}
            for scope in scopes_of(module):
                for statement in scope.statements:
                    for name, value in _put(statement.node):
                        where = statement.place
                        found.setdefault((where.scope, name), []).append((value, where))
            self._values[module] = found
        return self._values[module]

    def _decorated(self, module: Module, by: str) -> Iterator[Definition]:
        """Yield the functions and classes of the project that a decorator of a file stands above."""
        pattern = re.compile(rf"^[ \t]*@(?:\w+\.)*{re.escape(by)}\b", re.MULTILINE)
        for path in (path for path, text in self.project.texts.items() if pattern.search(text)):
            found = self.project.module(path)
            for each in found.definitions.values() if found is not None else ():
                for decorator in each.node.decorator_list:
                    func = decorator.func if isinstance(decorator, ast.Call) else decorator
                    text = dotted(func) or ""
                    named = self.project.named(text, Place(each.module, "")) if text else None
                    if named is not None and named.module is module and named.name == by:
                        yield each


def _container(node: ast.expr) -> ast.expr | None:
    """Return what an expression picks one of: ``TASKS`` of ``TASKS[name]`` and ``TASKS.get(name)``."""
    if isinstance(node, ast.Subscript):
        return node.value
    func = node.func if isinstance(node, ast.Call) else None
    return func.value if isinstance(func, ast.Attribute) and func.attr in _GIVES_ONE else None


def _gone_through(node: ast.expr, place: Place) -> ast.expr | None:
    """Return what a loop around goes through whose target a name is."""
    for loop in place.loops if isinstance(node, ast.Name) else ():
        if isinstance(loop, (ast.For, ast.AsyncFor)):
            targets = loop.target.elts[-1:] if isinstance(loop.target, ast.Tuple) else [loop.target]
            if any(dotted(each) == dotted(node) for each in targets):
                func = loop.iter.func if isinstance(loop.iter, ast.Call) else None
                is_all = isinstance(func, ast.Attribute) and func.attr in _GIVES_ALL
                return func.value if is_all and isinstance(func, ast.Attribute) else loop.iter
    return None


def _put(node: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    """Yield what a statement puts into containers, by their names."""
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        yield from ((dotted(node.target) or "", each) for each in _parts(node.value))
    for target in node.targets if isinstance(node, ast.Assign) else ():
        assert isinstance(node, ast.Assign)
        if isinstance(target, ast.Subscript):
            yield dotted(target.value) or "", node.value
        else:
            yield from ((dotted(target) or "", each) for each in _parts(node.value))
    call = node.value if isinstance(node, ast.Expr) else None
    func = call.func if isinstance(call, ast.Call) else None
    if isinstance(call, ast.Call) and isinstance(func, ast.Attribute) and func.attr in _PUTS_LAST:
        yield from ((dotted(func.value) or "", each) for each in call.args[-1:])


def _parts(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.Dict):
        return node.values
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        return node.elts
    is_dict = isinstance(node, ast.Call) and dotted(node.func) == "dict"
    return [each.value for each in node.keywords] if is_dict and isinstance(node, ast.Call) else []


def _registrars(module: Module, text: str) -> Iterator[str]:
    """Yield the functions of a file that put what they are given into one of its dicts."""
    for definition in module.definitions.values():
        if "." in definition.name or isinstance(definition.node, ast.ClassDef):
            continue
        for node in ast.walk(definition.node):
            targets = node.targets if isinstance(node, ast.Assign) else []
            if any(isinstance(each, ast.Subscript) and dotted(each.value) == text for each in targets):
                yield definition.name
                break
