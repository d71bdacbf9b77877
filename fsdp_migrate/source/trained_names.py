"""Names of models that a Trainer has sharded in place, below the line where it did, in a project's files."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fsdp_migrate.source.project import Place, dotted
from fsdp_migrate.source.project_scopes import scopes_of
from fsdp_migrate.source.project_switches import is_ruled_out


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from fsdp_migrate.source.project import Module, Project, Start

    Shards = Callable[[ast.Call, Mapping[str, ast.Call], Place], str | None]
    """Tells the name of the model that a call shards, by it and by what names of the scope are made by."""


@dataclass(eq=False)
class _Lines:
    """Where a name of a scope is sharded, and the lines that bind it."""

    sharded: list[Place] = field(default_factory=list)
    bound: list[Start] = field(default_factory=list)


@dataclass(eq=False)
class TrainedNames:
    """Answers whether a Trainer has sharded what a name stands for at a place."""

    project: Project
    shards: Shards
    _known: dict[Path, dict[tuple[str, str], _Lines]] = field(default_factory=dict)

    def is_one(self, text: str, place: Place) -> bool:
        """Tell whether a name is such a model: below a line that shards it, and bound to no other since."""
        module = place.module
        if module.path not in self._known:
            self._known[module.path] = dict(self._in(module))
        lines = self._known[module.path].get((place.scope, text), _Lines())
        return any(
            each.start < place.start
            and not any(each.start < start < place.start for start in lines.bound)
            and not is_ruled_out(self.project, each, place)
            for each in lines.sharded
        )

    def _in(self, module: Module) -> Iterator[tuple[tuple[str, str], _Lines]]:
        for scope in scopes_of(module):
            made: dict[str, ast.Call] = {}
            found: dict[str, _Lines] = {}
            for each in scope.statements:
                for call in each.calls:
                    text = self.shards(call, made, each.place)
                    if text is not None:
                        found.setdefault(text, _Lines()).sharded.append(each.place)
                for target in _targets(each.node):
                    found.setdefault(target, _Lines()).bound.append(each.place.start)
                    value = getattr(each.node, "value", None)
                    if isinstance(value, ast.Call):
                        made[target] = value
            name = scope.statements[0].place.scope if scope.statements else ""
            yield from (((name, text), lines) for text, lines in found.items() if lines.sharded)


def model_given(call: ast.Call) -> str | None:
    """Return the name of the model that a call is given: ``model=net``, or at the first place."""
    named = [each.value for each in call.keywords if each.arg == "model"]
    placed = [each for each in call.args[:1] if not isinstance(each, ast.Starred)]
    return next(map(dotted, (*named, *placed)), None)


def _targets(node: ast.stmt) -> Iterator[str]:
    targets = node.targets if isinstance(node, ast.Assign) else []
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        targets = [node.target]
    for target in targets:
        parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
        yield from filter(None, map(dotted, parts))
