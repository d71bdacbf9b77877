"""Functions and classes that are picked out of dicts and lists: ``TASKS[name](model)``."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fsdp_migrate.source.project import Place, dotted
from fsdp_migrate.source.project_scopes import scopes_of
from fsdp_migrate.source.python.walked import walked


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.project import Definition, Module, Project
    from fsdp_migrate.source.project_globals import Globals

    Values = dict[tuple[str, str], list[tuple[ast.expr, Place]]]


_DEEPEST = 5
_GIVES_ONE = frozenset({"get", "pop", "setdefault"})
_GIVES_ALL = frozenset({"items", "values"})
_GIVES_THE_SAME = frozenset({"iter", "list", "reversed", "sorted", "tuple"})
_PUTS_ALL = frozenset({"extend", "update"})
_PUTS_LAST = frozenset({"add", "append", "insert"})


@dataclass(eq=False)
class PickedFunctions:
    """Answers what may be picked out of a container of functions. Reads only."""

    project: Project
    globals: Globals
    _values: dict[Module, Values] = field(default_factory=dict, repr=False)
    _registered: dict[tuple[object, str], list[Definition]] = field(default_factory=dict, repr=False)

    def of(self, node: ast.expr, place: Place) -> list[tuple[ast.expr, Place]]:
        """Return the functions' names that an expression, or the target of a loop around, may stand for."""
        picked = _container(node)
        container, path = (picked, ()) if picked is not None else _gone_through(node, place)
        if container is None:
            return []
        found = self._in(_root(container), place)
        return [(part, where) for each, where in found if (part := _at(each, path)) is not None]

    def _in(self, container: ast.expr, place: Place) -> list[tuple[ast.expr, Place]]:
        """Return what a container holds: one written out, by its name, or given by a function."""
        if literal := _parts(container):
            return [(each, place) for each in literal]
        if isinstance(container, ast.Call):
            return [*self._given_by(container, place)]
        name = dotted(container)
        if name is None:
            return []
        if name.startswith(("self.", "cls.")) and (owner := self.project.class_of(place)) is not None:
            return [*self._of_family(owner, f"self.{name.partition('.')[2]}")]
        module, scope, text = self._where(name, place)
        return self._held(module).get((scope, text), []) or self._held(module).get(("", text), [])

    def _given_by(self, call: ast.Call, place: Place) -> Iterator[tuple[ast.expr, Place]]:
        """Yield what is in the lists and dicts that a function of the project gives."""
        made = self.project.named(dotted(call.func) or "", place)
        if made is None or isinstance(made.node, ast.ClassDef):
            return
        where = Place(made.module, made.name)
        for node in walked(made.node):
            value = node.value if isinstance(node, ast.Return) else None
            if value is not None and not isinstance(value, ast.Call):
                yield from self._in(value, where)

    def _of_family(self, owner: Definition, text: str) -> Iterator[tuple[ast.expr, Place]]:
        """Yield what an attribute holds that a class, its bases and those below it fill."""
        for module in self.project.parsed(self.project.holding([text.rpartition(".")[2]])):
            for (scope, name), values in self._held(module).items():
                other = module.definitions.get(scope) if name == text else None
                is_its = other is not None and (other is owner or self._are_related(other, owner))
                yield from values if is_its else ()

    def _are_related(self, one: Definition, other: Definition) -> bool:
        return self._is_below(one, other) or self._is_below(other, one)

    def _is_below(self, one: Definition, other: Definition, depth: int = 0) -> bool:
        """Tell whether a class is derived from another."""
        bases = self.project.bases(one) if depth < _DEEPEST else []
        return other in bases or any(self._is_below(each, other, depth + 1) for each in bases)

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
        return (place.module, *self._named(name, place))

    def _named(self, name: str, place: Place) -> tuple[str, str]:
        """Return the scope and the name of a container; of an object's the class, whose methods fill it."""
        node = self.project.node(place.module, place.scope)
        if isinstance(node, ast.ClassDef) and "." not in name:
            return place.scope, f"self.{name}"
        owner = self.project.class_of(place) if name.startswith(("self.", "cls.")) else None
        return (owner.name, f"self.{name.partition('.')[2]}") if owner is not None else (place.scope, name)

    def _held(self, module: Module) -> Values:
        if module not in self._values:
            found: Values = {}
            for scope in scopes_of(module):
                for statement in scope.statements:
                    for name, value in _put(statement.node):
                        where = statement.place
                        found.setdefault(self._named(name, where), []).append((value, where))
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


def _gone_through(node: ast.expr, place: Place) -> tuple[ast.expr | None, tuple[int, ...]]:
    """Return what a loop around goes through whose target a name is, and where in each of that it stands."""
    for loop in place.loops if isinstance(node, ast.Name) else ():
        if isinstance(loop, (ast.For, ast.AsyncFor)):
            path = _path(loop.target, dotted(node))
            if path is not None:
                return _each_of(loop.iter, path)
    return None, ()


def _path(target: ast.expr, name: str | None) -> tuple[int, ...] | None:
    """Return the places by which a name stands in the target of a loop."""
    if not isinstance(target, (ast.Tuple, ast.List)):
        return () if dotted(target) == name else None
    inner = ((number, _path(each, name)) for number, each in enumerate(target.elts))
    return next(((number, *path) for number, path in inner if path is not None), None)


def _each_of(over: ast.expr, path: tuple[int, ...]) -> tuple[ast.expr | None, tuple[int, ...]]:
    """Return the container that is gone through by a call of Python's own, and the path in each of it."""
    func = over.func if isinstance(over, ast.Call) else None
    if not isinstance(over, ast.Call) or func is None:
        return over, path
    if isinstance(func, ast.Attribute) and func.attr in _GIVES_ALL:
        is_item = func.attr == "items"
        return (None, ()) if is_item and path[:1] != (1,) else (func.value, path[1:] if is_item else path)
    name = dotted(func)
    if name in _GIVES_THE_SAME and over.args:
        return _each_of(over.args[0], path)
    if name == "enumerate" and path[:1] == (1,):
        return _each_of(over.args[0], path[1:])
    if name == "zip" and path and path[0] < len(over.args):
        return _each_of(over.args[path[0]], path[1:])
    return over, path


def _at(node: ast.expr, path: tuple[int, ...]) -> ast.expr | None:
    """Return the part of a tuple in tuples to which some places lead."""
    for place in path:
        if not isinstance(node, (ast.Tuple, ast.List)) or place >= len(node.elts):
            return None
        node = node.elts[place]
    return node


def _root(node: ast.expr) -> ast.expr:
    """Return the container of containers that one is taken of: ``hooks`` of ``hooks[event]``."""
    while (outer := _container(node)) is not None:
        node = outer
    return node


def _put(node: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    """Yield what a statement puts into containers, by their names."""
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        yield from ((dotted(node.target) or "", each) for each in _parts(node.value))
    for target in node.targets if isinstance(node, ast.Assign) else ():
        assert isinstance(node, ast.Assign)
        if isinstance(target, ast.Subscript):
            yield dotted(_root(target)) or "", node.value
        else:
            yield from ((dotted(target) or "", each) for each in _parts(node.value))
    call = node.value if isinstance(node, ast.Expr) else None
    func = call.func if isinstance(call, ast.Call) else None
    if isinstance(call, ast.Call) and isinstance(func, ast.Attribute) and func.attr in _PUTS_LAST:
        yield from ((dotted(_root(func.value)) or "", each) for each in call.args[-1:])
    elif isinstance(call, ast.Call) and isinstance(func, ast.Attribute) and func.attr in _PUTS_ALL:
        yield from (
            (dotted(_root(func.value)) or "", part) for each in call.args[-1:] for part in _parts(each)
        )
    if isinstance(node, ast.AugAssign):
        yield from ((dotted(_root(node.target)) or "", each) for each in _parts(node.value))


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
