"""Objects of a project's classes: which class an expression may be of, and who sets their attributes."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from fsdp_migrate.source.call_arguments import given_by
from fsdp_migrate.source.callers import Callers, akin
from fsdp_migrate.source.project import Definition, Place, dotted, last_name
from fsdp_migrate.source.project_scopes import scopes_of
from fsdp_migrate.source.python.walked import walked
from fsdp_migrate.source.values_bound import values_bound


if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fsdp_migrate.source.project import Project


_DEEPEST: Final = 24
_FILL: Final = frozenset({"append", "extend", "insert"})


@dataclass(eq=False)
class Objects:
    """Answers of which classes objects are. Reads only."""

    project: Project
    callers: Callers

    def of(self, node: ast.expr, place: Place, depth: int) -> list[Definition]:
        """Return the project's classes whose objects an expression may be; none where one is not seen."""
        if depth > _DEEPEST:
            return []
        if isinstance(node, ast.Call):
            text = dotted(node.func)
            made = self.callers.stands_for(text, place) if text is not None else None
            made = self.project.class_of(place) if text == "cls" else made
            return [made] if made is not None and isinstance(made.node, ast.ClassDef) else []
        values = values_bound(place, node.id) if isinstance(node, ast.Name) else None
        found: list[Definition] = []
        for value in values or ():
            if isinstance(value.node, ast.arg):
                function = value.place.module.definitions.get(value.place.scope)
                calls = self.callers.of(function) if function is not None else None
                given = (
                    [(given_by(function, value.node.arg, c), p) for c, p in calls or ()] if function else []
                )
            else:
                given = [(value.node if value.part is None else None, value.place)]
            those = [self.of(each, at, depth + 1) if each is not None else [] for each, at in given]
            if not those or not all(those):
                return []
            found += [each for part in those for each in part]
        return found

    def is_set_elsewhere(self, owner: Definition, name: str) -> bool:
        """Tell whether an attribute may be set from outside its class, or by a class below."""
        last = owner.name.split(".")[-1]
        for path in {*self.callers.holding(name), *self.callers.holding(last)}:
            module = self.project.module(path)
            found = _named_in(module.tree) if module is not None else None
            if found is None or name in found.changed or last in found.bases:
                return True
            if name in found.assigned and self._is_set_in(path, owner, name):
                return True
        return False

    def _is_set_in(self, path: Path, owner: Definition, name: str) -> bool:
        """Tell whether a file sets an attribute of what may be an object of a class, and of no other."""
        module = self.project.module(path)
        if module is None:
            return True
        for statement in (each for scope in scopes_of(module) for each in scope.statements):
            node = statement.node
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            parts = [each for target in targets if target is not None for each in ast.walk(target)]
            for each in parts:
                if isinstance(each, ast.Attribute) and each.attr == name and dotted(each.value) != "self":
                    own = self.project.class_of(statement.place) if dotted(each.value) == "cls" else None
                    classes = [own] if own is not None else self._noted(each.value, statement.place)
                    classes = classes or self.of(each.value, statement.place, 0)
                    if not classes or any(akin(self.project, one, owner) for one in classes):
                        return True
        return False

    def _noted(self, node: ast.expr, place: Place) -> list[Definition]:
        """Return the project's class that a parameter is said to be of."""
        values = values_bound(place, node.id) if isinstance(node, ast.Name) else None
        notes = [each.node.annotation for each in values or () if isinstance(each.node, ast.arg)]
        text = dotted(notes[0]) if len(notes) == len(values or ()) == 1 and notes[0] is not None else None
        made = self.callers.stands_for(text, place) if text is not None else None
        if made is None or not isinstance(made.node, ast.ClassDef):
            return []
        # What only says what an object has to have is no object's class.
        bases = (dotted(getattr(each, "value", each)) or dotted(each) or "" for each in made.node.bases)
        return [] if any(each.split(".")[-1] in {"ABC", "Protocol"} for each in bases) else [made]


@dataclass(frozen=True)
class _Named:
    """What classes a file derives from, and what attributes of anything but ``self`` it sets, and how."""

    bases: frozenset[str]
    assigned: frozenset[str]
    changed: frozenset[str]
    """Those that it fills, or sets otherwise than by assignment."""


_NAMED: Final[WeakKeyDictionary[ast.AST, _Named]] = WeakKeyDictionary()


def _named_in(tree: ast.AST) -> _Named:
    """Return it of a file: once for all who ask."""
    found = _NAMED.get(tree)
    if found is None:
        bases: set[str] = set()
        assigned: set[str] = set()
        changed: set[str] = set()
        for node in walked(tree):
            if isinstance(node, ast.ClassDef):
                bases.update(last_name(base) for base in node.bases)
            elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                assigned.update(name for each in targets for name in _others(each))
            else:
                changed.update(_changed(node))
        found = _NAMED[tree] = _Named(frozenset(bases), frozenset(assigned), frozenset(changed))
    return found


def _changed(node: ast.AST) -> Iterator[str]:
    """Yield the attributes that a node binds in a loop or a context, fills, or sets by their names."""
    if isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
        yield from _others(node.target)
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield from _others(node.optional_vars)
    elif isinstance(node, ast.Call):
        func = node.func
        if isinstance(func, ast.Name) and func.id == "setattr":
            yield from (
                each.value
                for each in node.args
                if isinstance(each, ast.Constant) and isinstance(each.value, str)
            )
        elif isinstance(func, ast.Attribute) and (func.attr in _FILL or func.attr.startswith("add_")):
            held = func.value
            yield from [held.attr] if isinstance(held, ast.Attribute) and dotted(held.value) != "self" else []


def _others(target: ast.expr) -> Iterator[str]:
    """Yield the attributes in a target that are not of ``self``."""
    for each in ast.walk(target):
        if (
            isinstance(each, ast.Attribute)
            and isinstance(each.ctx, ast.Store)
            and dotted(each.value) != "self"
        ):
            yield each.attr
