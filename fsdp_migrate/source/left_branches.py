"""Branches of functions that no call with a sharded model comes to: ``export(FSDP(net), version=0)``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fsdp_migrate.source.constant_arguments import constants_of
from fsdp_migrate.source.python.known_constants import are_never


if TYPE_CHECKING:
    import ast
    from collections.abc import Container, Sequence

    from fsdp_migrate.source.project import Asked, Definition, Place
    from fsdp_migrate.source.python.known_constants import Constants

    Fact = tuple[str, str]


def is_left_out(function: Definition, call: ast.Call, asked: Sequence[Asked]) -> bool:
    """Tell whether a call never comes to a place of a function, by its constants and the choices there."""
    return are_never(constants_of(function, call), (each.fact for each in asked))


@dataclass(eq=False)
class LeftBranches:
    """Answers so, by the constants that calls give beside a model."""

    _calls: dict[Fact, dict[int, Constants]] = field(default_factory=dict, repr=False)
    """Of a function's parameter the calls that give a sharded model to it, with their constants."""
    _others: set[Fact] = field(default_factory=set, repr=False)
    """The parameters that may have one of a call that is not seen."""

    def note(self, parameter: Fact, function: Definition, call: ast.Call) -> bool:
        """Note a call that gives a model to a parameter, and tell whether it was not known yet."""
        calls = self._calls.setdefault(parameter, {})
        if id(call) in calls:
            return False
        calls[id(call)] = constants_of(function, call)
        return True

    def note_other(self, parameter: Fact) -> bool:
        """Note that a parameter may have a model of a call that is not seen; tell whether that is new."""
        is_new = parameter not in self._others
        self._others.add(parameter)
        return is_new

    def hold(self, place: Place, name: str) -> bool:
        """Tell whether a place in a function is one of them, for a model that is its parameter."""
        parameter = f"{place.module.path}:{place.scope}", name
        calls = self._calls.get(parameter)
        is_seen = bool(calls and place.asked) and parameter not in self._others
        facts = [each.fact for each in place.asked]
        return is_seen and all(are_never(known, facts) for known in (calls or {}).values())

    def told(self, key: str, made: Container[Fact]) -> dict[Fact, tuple[Constants, ...]]:
        """Return the functions and parameters of a file of which each call is seen, and its constants.

        Not those that a function makes models itself.
        """
        return {
            (scope.removeprefix(f"{key}:"), name): tuple(calls.values())
            for (scope, name), calls in self._calls.items()
            if scope.startswith(f"{key}:") and all(calls.values())
            if (scope, name) not in self._others and (scope, name) not in made
        }
