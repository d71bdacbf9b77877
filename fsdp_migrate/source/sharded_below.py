"""Names whose model the same function shards below: above that it is plain, as nothing is sharded twice."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source.call_arguments import given_by
from fsdp_migrate.source.project import dotted
from fsdp_migrate.source.project_names import targets_of
from fsdp_migrate.source.python.argument_places import every_argument, named_arguments, parameters_of
from fsdp_migrate.source.python.walked import parts_of_one


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.callers import Callers
    from fsdp_migrate.source.plain_doubts import Doubts
    from fsdp_migrate.source.project import Asked, Definition, Place
    from fsdp_migrate.source.project_scopes import Statement


_DEEPEST: Final = 3
_ASKING: Final = (ast.BoolOp, ast.GeneratorExp, ast.IfExp, ast.Lambda, ast.ListComp)
_CLASS: Final = re.compile(r"(?:^|\.)FullyShardedDataParallel$")


@dataclass(eq=False)
class ShardedBelow:
    """Answers which names FSDP1's class, or a function of the project, shards below a place. Reads only."""

    callers: Callers
    doubts: Doubts
    _known: dict[tuple[str, str], bool] = field(default_factory=dict, repr=False)

    def holds(self, place: Place, text: str, depth: int = 0) -> bool:
        """Tell whether what has a name at a place is sharded below it, in any case, by this function.

        Or by each that calls this one, where it is a private method and it is of its object's attributes.
        """
        for statement in self._run_below(place):
            if any(self._shards(call, text, statement.place, 0) for call in _made_always(statement)):
                return True
            if text in _bound(statement.node) and not _is_of_itself(statement, text):
                return False
        return text.startswith("self.") and depth < _DEEPEST and self._is_called_above(place, text, depth + 1)

    def _is_called_above(self, place: Place, text: str, depth: int) -> bool:
        """Tell whether a private method is called by its own class alone, and above the sharding."""
        function = place.module.definitions.get(place.scope)
        name = place.scope.rpartition(".")[2]
        if function is None or function.owner is None or not name.startswith("_") or name.endswith("__"):
            return False
        calls = self.callers.of(function)
        return bool(calls) and all(
            dotted(call.func) == f"self.{name}"
            and self.doubts.project.class_of(at) is function.owner
            and self.holds(at, text, depth)
            for call, at in calls or ()
        )

    def _run_below(self, place: Place) -> Iterator[Statement]:
        """Yield a statement and those that run after it, wherever it does."""
        for each in self.doubts.statements(place.module, place.scope):
            is_always = each.place.blocks == place.blocks[: len(each.place.blocks)]
            if each.place.start >= place.start and is_always and not each.place.loops:
                yield each

    def _shards(self, call: ast.Call, text: str, place: Place, depth: int) -> bool:
        """Tell whether a call shards what it is given by this name."""
        func = dotted(call.func)
        if func is None or depth > _DEEPEST:
            return False
        written = self.doubts.project.qualified(func, place)
        if _CLASS.search(written) or _CLASS.search(func):
            named = named_arguments(call).get("module")
            return any(
                dotted(each) == text for each in (*call.args[:1], *([named] if named is not None else ()))
            )
        made = self.callers.stands_for(func, place)
        if made is None or isinstance(made.node, ast.ClassDef):
            return False
        return any(
            dotted(given) == text and self._shards_given(made, name, depth + 1)
            for name in _parameters(made)
            if (given := given_by(made, name, call)) is not None
        )

    def _shards_given(self, function: Definition, name: str, depth: int) -> bool:
        """Tell whether a function shards what it is given, whatever else it is asked for."""
        key = (function.key, name)
        if key not in self._known:
            self._known[key] = False  # what it gives to itself counts for nothing
            for each in self.doubts.statements(function.module, function.name):
                if each.place.loops or not all(map(_is_required, each.place.asked)):
                    continue
                if any(self._shards(call, name, each.place, depth) for call in _made_always(each)):
                    self._known[key] = True
                    break
                if name in _bound(each.node) and not _is_of_itself(each, name):
                    break
        return self._known[key]


def _is_required(asked: Asked) -> bool:
    """Tell whether what a choice says is that nothing was raised: ``if is_meta(model): raise ...`` above."""
    choice = asked.choice
    return not asked.truth and isinstance(choice, ast.If) and isinstance(choice.body[-1], ast.Raise)


def _parameters(function: Definition) -> list[str]:
    assert not isinstance(function.node, ast.ClassDef)
    return [each.arg for each in parameters_of(function.node)]


def _made_always(statement: Statement) -> Iterator[ast.Call]:
    """Yield the calls of a statement that are made whatever an expression in it asks."""
    asking = (each for each in parts_of_one(statement.node) if isinstance(each, _ASKING))
    maybe = {id(part) for each in asking for part in ast.walk(each)}
    yield from (call for call in statement.calls if id(call) not in maybe)


def _bound(node: ast.stmt) -> set[str]:
    """Return the names that a statement binds anew, loops and contexts that it opens left out."""
    parts = (part for each in targets_of(node) for part in ast.walk(each))
    return {text for part in parts if isinstance(part, ast.expr) and (text := dotted(part))}


def _is_of_itself(statement: Statement, text: str) -> bool:
    """Tell whether a name is given what a call makes of it: ``model, ema = load(path, model, ema)``."""
    return any(dotted(arg) == text for call in statement.calls for arg in _given(call))


def _given(call: ast.Call) -> list[ast.expr]:
    func = [call.func.value] if isinstance(call.func, ast.Attribute) else []
    return [*every_argument(call), *func]
