"""The texts that a name stands for: what a loop goes through, and what calls give to a parameter."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fsdp_migrate.source.project import last_name
from fsdp_migrate.source.project_containers import text_of
from fsdp_migrate.source.project_names import texts_gone_through
from fsdp_migrate.source.project_scopes import scopes_of
from fsdp_migrate.source.python.argument_places import named_arguments, parameters_of, placed_names


if TYPE_CHECKING:
    from fsdp_migrate.source.project import Definition, Place, Project


@dataclass(eq=False)
class GivenTexts:
    """Answers for a project. Reads only."""

    project: Project
    _given: dict[tuple[str, str], frozenset[str]] = field(default_factory=dict, repr=False)

    def of(self, node: ast.expr, place: Place) -> frozenset[str]:
        """Return the texts that an expression may be, as far as they are written."""
        text = text_of(node)
        if text is not None or not isinstance(node, ast.Name):
            return frozenset([text] if text is not None else ())
        found = texts_gone_through(node, place)
        owner = None if found else _owner(node.id, place)
        return frozenset(found) if owner is None else self._to(owner, node.id)

    def _to(self, owner: Definition, name: str) -> frozenset[str]:
        """Return the texts that calls give to a parameter of a function, by its name alone."""
        known = owner.key, name
        if known not in self._given:
            self._given[known] = frozenset(self._find(owner, name))
        return self._given[known]

    def _find(self, owner: Definition, name: str) -> set[str]:
        node, last = owner.node, owner.name.rpartition(".")[2]
        if isinstance(node, ast.ClassDef):
            return set()
        order = placed_names(node, is_method=owner.owner is not None)
        number = order.index(name) if name in order else len(order)
        found: set[str] = set()
        for module in self.project.parsed(self.project.holding([last])):
            for statement in (each for scope in scopes_of(module) for each in scope.statements):
                for call in statement.calls:
                    if last_name(call.func) == last:
                        placed = call.args[number] if len(call.args) > number else None
                        text = text_of(named_arguments(call).get(name, placed))
                        found |= {text} if text is not None else set()
        return found


def _owner(name: str, place: Place) -> Definition | None:
    """Return the function, of those around a place, whose parameter a name is."""
    scope = place.scope
    while scope:
        found = place.module.definitions.get(scope)
        node = found.node if found is not None else None
        names = parameters_of(node) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) else []
        if any(each.arg == name for each in names):
            return found
        scope = scope.rpartition(".")[0]
    return None
