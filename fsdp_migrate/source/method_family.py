"""The methods of a class over a project's files, by the names that objects have, and which runs first."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from fsdp_migrate.source.project import Definition, Module, Project, dotted
from fsdp_migrate.source.python.walked import walked


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fsdp_migrate.source.project import Function


INIT: Final = "__init__"
_DEEPEST: Final = 4


@dataclass(frozen=True, eq=False)
class Method:
    """A function that objects of a class have as a method, by the name that it was defined by."""

    module: Module
    name: str
    node: Function
    owner: Definition | None
    """The class that defines it; none of a function that is set on a class from outside."""


class Spot(NamedTuple):
    """A line of a method."""

    method: Method
    line: int


@dataclass(eq=False)
class Family:
    """What ``self.name`` may call in objects of a class. Reads only."""

    by_name: dict[str, list[Method]] = field(default_factory=dict)
    """The methods of a name: the class's own first, then those of its bases, and those set from outside."""

    @property
    def methods(self) -> list[Method]:
        """All of them."""
        return [each for found in self.by_name.values() for each in found]

    def runs_first(self, one: Spot, other: Spot) -> bool | None:
        """Tell whether a line always runs before another; None where nothing tells."""
        said = [told for each in self.methods if (told := self._in(each, one, other)) is not None]
        if said:
            return all(said)
        made = self.by_name.get(INIT, [])[:1]
        is_made = any(self._lines(each, one, 0) for each in made)
        return True if is_made and not any(self._lines(each, other, 0) for each in made) else None

    def may_run(self, method: Method) -> bool:
        """Tell whether objects may run a method: no other takes its place, or one calls what it replaces."""
        others = [each for each in self.by_name.get(method.name, []) if each.owner is not None]
        if method.owner is None or not others or others[0].node is method.node:
            return True
        called = (
            node.func for each in self.methods for node in walked(each.node) if isinstance(node, ast.Call)
        )
        return any(
            isinstance(func, ast.Attribute) and func.attr == method.name and dotted(func.value) != "self"
            for func in called
        )

    def calls_of(self, method: Method) -> Iterator[ast.Call]:
        """Yield the calls of a method by the names under which objects have it."""
        names = {f"self.{name}" for name, found in self.by_name.items() if method in found}
        for each in self.methods:
            calls = (node for node in walked(each.node) if isinstance(node, ast.Call))
            yield from (call for call in calls if dotted(call.func) in names)

    def _in(self, method: Method, one: Spot, other: Spot) -> bool | None:
        first, then = self._lines(method, one, 0), self._lines(method, other, 0)
        if not first or not then or first & then:
            return None
        return max(first) < min(then)

    def _lines(self, method: Method, spot: Spot, depth: int) -> set[int]:
        """Return the lines of a method that run another's, by the methods that it calls."""
        if method.node is spot.method.node:
            return {spot.line}
        found: set[int] = set()
        for call in (node for node in ast.walk(method.node) if isinstance(node, ast.Call)):
            start, _, name = (dotted(call.func) or "").rpartition(".")
            known = self.by_name.get(name, []) if start in {"self", "super()"} and depth < _DEEPEST else []
            known = [each for each in known if each.node is not method.node]
            own = [each for each in known if each.owner is not None]
            # What a class has of its own is not run by the name, but by `super()`, of those above it.
            set_on = [each for each in known if each.owner is None]
            reached = [*(own[:1] if start == "self" else own), *set_on]
            if any(self._lines(each, spot, depth + 1) for each in reached):
                found.add(call.lineno)
        return found


def family_of(project: Project, owner: Definition, patches: Iterable[tuple[str, Method]]) -> Family:
    """Return the methods that objects of a class have."""
    family = Family()
    for each in _order(project, owner, 0):
        for name, definition in each.module.definitions.items():
            above, _, last = name.rpartition(".")
            if above == each.name and not isinstance(definition.node, ast.ClassDef):
                found = family.by_name.setdefault(last, [])
                if all(known.node is not definition.node for known in found):
                    found.append(Method(each.module, last, definition.node, each))
    for attr, method in patches:
        if attr in family.by_name:
            family.by_name[attr].append(method)
    return family


def _order(project: Project, owner: Definition, depth: int) -> Iterator[Definition]:
    yield owner
    for base in project.bases(owner) if depth < _DEEPEST else ():
        yield from _order(project, base, depth + 1)
