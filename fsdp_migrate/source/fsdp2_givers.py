"""Functions of a project by which it shards models with FSDP2, and never with FSDP1, on any way."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source import catalog
from fsdp_migrate.source.callers import Callers
from fsdp_migrate.source.project import Place, dotted
from fsdp_migrate.source.project_scopes import scopes_of
from fsdp_migrate.source.python.links import NOTHING
from fsdp_migrate.source.python.wrappers import AROUND_MODEL, DDP, FSDP2, SAME_MODEL
from fsdp_migrate.source.values_bound import values_bound


if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fsdp_migrate.source.project import Definition, Module, Project
    from fsdp_migrate.source.project_scopes import Statement
    from fsdp_migrate.source.python.links import Kinds, Links


_DEEPEST: Final = 8
# What a value may be: sharded by FSDP2, or plain or another wrapper's. None of what is not seen.
_Given = frozenset[str] | None
_PLAIN: Final[frozenset[str]] = frozenset()
_SHARDED: Final = frozenset({"fsdp2"})
_DDPS: Final = frozenset({"ddp"})


def with_fsdp2_givers(project: Project, links: dict[Path, Links]) -> dict[Path, Links]:
    """Tell files that ask for FSDP1's class which functions, as they call them, give FSDP2's models alone."""
    if not any("fully_shard" in text for text in project.texts.values()):
        return links
    givers = _Givers(project, Callers(project))
    told: dict[Path, Links] = {}
    for module in project.parsed(project.holding([catalog.FSDP])):
        known = dict(givers.called_in(module))
        if known:
            before = links.get(module.path, NOTHING)
            gives = {name: before.gives.get(name, frozenset()) | kinds for name, kinds in known.items()}
            told[module.path] = replace(
                before,
                gives={**before.gives, **gives},
                gives_fsdp2s=frozenset(known),
                called_here=frozenset(givers.called_by(module)),
            )
    return {**links, **told}


@dataclass(eq=False)
class _Givers:
    project: Project
    callers: Callers
    _known: dict[str, _Given] = field(default_factory=dict, repr=False)

    def called_in(self, module: Module) -> Iterator[tuple[str, Kinds]]:
        """Yield the functions that a file calls, by their names there, with what they give."""
        for call, place in self.callers.calls_in(module):
            text = dotted(call.func)
            made = self.callers.stands_for(text, place) if text is not None else None
            kinds = self._gives(made, 0) if made is not None else None
            if text is not None and kinds is not None and "fsdp2" in kinds:
                yield self.project.qualified(text, place) or text, kinds
                yield text, kinds

    def called_by(self, module: Module) -> Iterator[str]:
        """Yield the functions of a file that it alone calls."""
        for name, definition in module.definitions.items():
            calls = self.callers.of(definition)
            if calls and all(place.module is module for _, place in calls):
                yield name

    def _gives(self, function: Definition, depth: int) -> _Given:
        node = function.node
        if isinstance(node, ast.ClassDef) or node.decorator_list or depth > _DEEPEST:
            return None
        if function.key not in self._known:
            self._known[function.key] = None  # one that calls itself is not followed
            those = self._statements(function)
            returns = [each for each in those if isinstance(each.node, ast.Return)]
            given = [self._of_return(each, those, depth + 1) for each in returns]
            self._known[function.key] = _both(given)
        return self._known[function.key]

    @staticmethod
    def _statements(function: Definition) -> list[Statement]:
        scopes = scopes_of(function.module)
        return [each for scope in scopes for each in scope.statements if each.place.scope == function.name]

    def _of_return(self, statement: Statement, those: list[Statement], depth: int) -> _Given:
        node = statement.node
        value = node.value if isinstance(node, ast.Return) else None
        if value is None:
            return _PLAIN
        text = dotted(value)
        calls = (call for each in those for call in each.calls if call.args)
        is_sharded = text is not None and any(
            dotted(call.args[0]) == text and self._external(call, statement.place) in FSDP2 for call in calls
        )
        kinds = self._of(value, statement.place, depth)
        return kinds | _SHARDED if kinds is not None and is_sharded else kinds

    def _of(self, node: ast.expr, place: Place, depth: int) -> _Given:
        if isinstance(node, ast.Constant):
            return _PLAIN
        if isinstance(node, ast.IfExp):
            return _both([self._of(each, place, depth) for each in (node.body, node.orelse)])
        if isinstance(node, ast.Call):
            return self._of_call(node, place, depth)
        values = values_bound(place, node.id) if isinstance(node, ast.Name) else None
        if not values or depth > _DEEPEST or any(each.part is not None for each in values):
            return None
        return _both(
            [
                _PLAIN if isinstance(each.node, ast.arg) else self._of(each.node, each.place, depth + 1)
                for each in values
            ]
        )

    def _of_call(self, call: ast.Call, place: Place, depth: int) -> _Given:
        written = self._external(call, place)
        if written in FSDP2:
            return _SHARDED
        if written in DDP:
            return _DDPS
        at = AROUND_MODEL.get(written)
        if at is not None and at < len(call.args):
            return self._of(call.args[at], place, depth + 1)
        if isinstance(call.func, ast.Attribute) and call.func.attr in SAME_MODEL:
            return self._of(call.func.value, place, depth + 1)
        text = dotted(call.func)
        made = self.callers.stands_for(text, place) if text is not None else None
        return self._gives(made, depth + 1) if made is not None else None

    def _external(self, call: ast.Call, place: Place) -> str:
        text = dotted(call.func)
        return self.project.qualified(text, place) if text is not None else ""


def _both(given: list[_Given]) -> _Given:
    """Return what one of several values is; None where one of them is not seen, or there is none."""
    seen = [each for each in given if each is not None]
    return frozenset().union(*seen) if seen and len(seen) == len(given) else None
