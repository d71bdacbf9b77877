"""The other names that a project's functions have: ``step = train``, and what a function gives in a tuple."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from fsdp_migrate.source.project import NOWHERE, dotted
from fsdp_migrate.source.project_scopes import scopes_of
from fsdp_migrate.source.python.argument_places import parameters_of


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.project import Definition, Module, Place, Project


_PARTIAL = frozenset({"functools.partial", "partial"})
_DEEPEST = 3


class Value(NamedTuple):
    """What a name is given: an expression where it stands, or one part of the tuple that it is."""

    node: ast.expr
    place: Place
    part: int | None = None


@dataclass(frozen=True)
class _Names:
    """The names of a module's scopes that may stand for functions, and what its functions give."""

    values: dict[tuple[str, str], list[Value]]
    returns: dict[str, list[Value]]

    @classmethod
    def of(cls, module: Module) -> _Names:
        """Collect them; what stands in both branches of a choice counts."""
        found = cls({}, {})
        for scope in scopes_of(module):
            for statement in scope.statements:
                node, place = statement.node, statement.place
                if isinstance(node, ast.Return) and node.value is not None:
                    found.returns.setdefault(place.scope, []).append(Value(node.value, place))
                if isinstance(node, ast.Assign):
                    bound = [each for t in node.targets for each in _bound(t, Value(node.value, place))]
                    for name, value in bound:
                        found.values.setdefault((place.scope, name), []).append(value)
        return found

    def at(self, name: str, place: Place) -> list[Value]:
        """Return what a name may be another one for at a place, and where it was said."""
        scope = place.scope
        while (scope, name) not in self.values and scope:
            if _has_parameter(place.module, scope, name):
                return []
            scope = scope.rpartition(".")[0]
        values = self.values.get((scope, name), [])
        if scope != place.scope:
            return values
        above = [each for each in values if each.place.start < place.start]
        # What stands in this block, or in one around it, was always run.
        always = [
            each.place.start for each in above if place.blocks[: len(each.place.blocks)] == each.place.blocks
        ]
        after = [each for each in above if each.place.start >= max(always, default=NOWHERE)]
        return after if always or not place.loops else values


@dataclass(eq=False)
class RenamedFunctions:
    """Answers which functions and classes a name may be another one for. Reads only."""

    project: Project
    _names: dict[Module, _Names] = field(default_factory=dict, repr=False)
    _found: dict[tuple[ast.expr, int | None], list[Definition]] = field(default_factory=dict, repr=False)

    def at(self, text: str, place: Place) -> list[Value]:
        """Return what a name may be another one for at a place."""
        if place.module not in self._names:
            self._names[place.module] = _Names.of(place.module)
        return self._names[place.module].at(text, place) if "." not in text else []

    def given_by(self, value: Value, depth: int = 0) -> list[Definition]:
        """Return the functions that a call gives, or the part of it that counts: ``partial(train, x=1)``."""
        known = value.node, value.part
        if known not in self._found:
            self._found[known] = [] if depth > _DEEPEST else list(self._of_call(value, depth + 1))
        return self._found[known]

    def _of_call(self, value: Value, depth: int) -> Iterator[Definition]:
        call = value.node
        if not isinstance(call, ast.Call):
            return
        text = dotted(call.func) or ""
        if (self.project.qualified(text, value.place) or text) in _PARTIAL:
            # What is given by its place would stand before what a call gives.
            if len(call.args) == 1 and value.part is None:
                yield from self._functions(Value(call.args[0], value.place), depth)
            return
        for definition in self._functions(Value(call.func, value.place), depth):
            module = definition.module
            if isinstance(definition.node, ast.ClassDef):
                continue
            if module not in self._names:
                self._names[module] = _Names.of(module)
            for given in self._names[module].returns.get(definition.name, ()):
                part = _part(given.node, value.part)
                if part is not None:
                    yield from self._functions(Value(part, given.place), depth)

    def _functions(self, value: Value, depth: int) -> Iterator[Definition]:
        text = dotted(value.node)
        if text is None:
            yield from self.given_by(value, depth)
            return
        own = self.project.own(text.partition(".")[2], value.place) if text.startswith("self.") else None
        found = own or self.project.named(text, value.place)
        if found is not None:
            yield found
            return
        for each in self.at(text, value.place) if depth <= _DEEPEST else ():
            if each.part is not None or dotted(each.node) != text:
                yield from self._functions(each, depth + 1)


def _bound(target: ast.expr, value: Value) -> Iterator[tuple[str, Value]]:
    """Yield the names that an assignment binds to what may be a function, or may give one."""
    if isinstance(target, ast.Name):
        for choice in _parts(value.node):
            if isinstance(choice, (ast.Attribute, ast.Call, ast.Lambda, ast.Name, ast.Subscript)):
                yield target.id, Value(choice, value.place)
    elif isinstance(target, (ast.List, ast.Tuple)):
        for number, each in enumerate(target.elts):
            if isinstance(each, ast.Starred):
                return
            part = _part(value.node, number)
            if part is not None:
                yield from _bound(each, Value(part, value.place))
            elif isinstance(each, ast.Name) and isinstance(value.node, ast.Call):
                yield each.id, Value(value.node, value.place, number)


def _parts(node: ast.expr) -> list[ast.expr]:
    return [node.body, node.orelse] if isinstance(node, ast.IfExp) else [node]


def _part(node: ast.expr, index: int | None) -> ast.expr | None:
    """Return an expression, or the part of a tuple that stands at a place."""
    if index is None:
        return node
    parts = node.elts if isinstance(node, (ast.List, ast.Tuple)) else []
    is_plain = index < len(parts) and not any(isinstance(each, ast.Starred) for each in parts[: index + 1])
    return parts[index] if is_plain else None


def _has_parameter(module: Module, scope: str, name: str) -> bool:
    found = module.definitions.get(scope)
    if found is None or isinstance(found.node, ast.ClassDef):
        return False
    return any(each.arg == name for each in parameters_of(found.node))
