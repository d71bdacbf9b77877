"""What is given to the setters of properties: ``trainer.model = FSDP(net)``, which runs a method."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fsdp_migrate.source.project import dotted
from fsdp_migrate.source.python.argument_places import placed_names


if TYPE_CHECKING:
    from fsdp_migrate.source.project import Definition, Project

    Fact = tuple[str, str]


_DEEPEST = 4


@dataclass(eq=False)
class PropertySetters:
    """Answers for the classes of a project. Reads only."""

    project: Project
    _known: dict[str, dict[str, Fact]] = field(default_factory=dict, repr=False)
    """By classes the parameters of their setters, by the attributes that these set."""

    def parameter(self, owner: str, attribute: str) -> Fact | None:
        """Return the parameter that is given what an attribute of a class's objects is set to.

        Args:
            owner: The class, by its key.
            attribute: The name of the attribute.
        """
        if owner not in self._known:
            path, name = self.project.split(owner)
            module = self.project.module(path)
            definition = module.definitions.get(name) if module is not None else None
            self._known[owner] = self._setters(definition, 0) if definition is not None else {}
        return self._known[owner].get(attribute)

    def _setters(self, owner: Definition, depth: int) -> dict[str, Fact]:
        found: dict[str, Fact] = {}
        if not isinstance(owner.node, ast.ClassDef):
            return found
        for base in self.project.bases(owner) if depth < _DEEPEST else ():
            found |= self._setters(base, depth + 1)
        for each in owner.node.body:
            if isinstance(each, ast.FunctionDef) and any(
                dotted(by) == f"{each.name}.setter" for by in each.decorator_list
            ):
                names = placed_names(each, is_method=True)
                found |= {each.name: (f"{owner.key}.{each.name}", names[0])} if names else {}
        return found
