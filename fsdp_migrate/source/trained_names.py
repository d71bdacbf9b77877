"""Names of models that a Trainer has sharded in place, below the line where it did, in a project's files."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fsdp_migrate.source.project import Place, calls_of, dotted


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from fsdp_migrate.source.project import Module

    Shards = Callable[[ast.Call, Mapping[str, ast.Call], Place], str | None]
    """Tells the name of the model that a call shards, by it and by what names of the scope are made by."""


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(eq=False)
class TrainedNames:
    """Answers whether a Trainer has sharded what a name stands for at a place."""

    shards: Shards
    _known: dict[Path, dict[tuple[str, str], tuple[int, list[int]]]] = field(default_factory=dict)

    def is_one(self, text: str, place: Place) -> bool:
        """Tell whether a name is such a model: below that line, and bound to no other since."""
        module = place.module
        if module.path not in self._known:
            self._known[module.path] = dict(self._in(module, module.tree.body, ""))
        line, bound = self._known[module.path].get((place.scope, text), (None, []))
        return line is not None and line < place.line and not any(line < each < place.line for each in bound)

    def _in(
        self, module: Module, body: list[ast.stmt], scope: str
    ) -> Iterator[tuple[tuple[str, str], tuple[int, list[int]]]]:
        made: dict[str, ast.Call] = {}
        bound: dict[str, list[int]] = {}
        found: dict[str, int] = {}
        for node in statements(body):
            if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
                yield from self._in(module, node.body, f"{scope}.{node.name}" if scope else node.name)
                continue
            for call in calls_of(node):
                text = self.shards(call, made, Place(module, scope))
                if text is not None:
                    found.setdefault(text, node.lineno)
            for target in _targets(node):
                bound.setdefault(target, []).append(node.lineno)
                if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                    made[target] = node.value
        yield from (((scope, text), (line, bound.get(text, []))) for text, line in found.items())


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements, and those of their branches; not what is in functions and classes."""
    for node in body:
        yield node
        if not isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            for inner in ("body", "orelse", "finalbody"):
                yield from statements(getattr(node, inner, []))
            for handler in getattr(node, "handlers", ()):
                yield from statements(handler.body)


def model_given(call: ast.Call, *, is_first: bool = True) -> str | None:
    """Return the name of the model that a call is given: ``model=net``, or at the first place."""
    named = [each.value for each in call.keywords if each.arg == "model"]
    placed = [each for each in call.args[:1] if not isinstance(each, ast.Starred)] if is_first else []
    return next(map(dotted, (*named, *placed)), None)


def _targets(node: ast.stmt) -> Iterator[str]:
    for target in node.targets if isinstance(node, ast.Assign) else ():
        parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
        yield from filter(None, map(dotted, parts))
