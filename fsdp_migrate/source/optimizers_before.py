"""Optimizers that a project makes above the sharding of what they step, and gives on below it."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fsdp_migrate.source.project import Place, dotted
from fsdp_migrate.source.project_scopes import scopes_of
from fsdp_migrate.source.python.argument_places import every_argument
from fsdp_migrate.source.python.optimizers import OF_A_MODEL, PARAMETERS, is_optimizer, of_optimizer


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fsdp_migrate.source.project import Module

    IsSharded = Callable[[str, Place], bool]
    Made = dict[str, list[tuple[ast.Call, Place]]]


@dataclass(eq=False)
class OptimizersBefore:
    """Answers for the files of a project. Reads only."""

    _made: dict[Module, Made] = field(default_factory=dict, repr=False)

    def kinds(self, text: str, place: Place, is_sharded: IsSharded) -> set[str]:
        """Return what an optimizer holds that was made of a plain model, which is sharded at this place.

        Args:
            text: The optimizer's name.
            place: Where it stands.
            is_sharded: Whether a model, by its name, is sharded at a place.
        """
        module = place.module
        if module not in self._made:
            self._made[module] = _optimizers_made(module)
        for call, where in self._made[module].get(text, ()):
            if not _is_same(text, where, place):
                continue
            for model in _stepped(call):
                at = place if where.scope == place.scope else _end_of(where)
                if is_sharded(model, at) and not is_sharded(model, where):
                    return set(OF_A_MODEL)
        return set()


def _is_same(text: str, made: Place, place: Place) -> bool:
    """Tell whether a name is the one that is bound where an optimizer is made."""
    if text.startswith("self."):
        return made.scope.rpartition(".")[0] == place.scope.rpartition(".")[0]
    return made.scope == place.scope and made.start < place.start


def _end_of(place: Place) -> Place:
    """Return the end of a place's function: below all that it shards, outside of its blocks."""
    return Place(place.module, place.scope, (2**31, 0))


def _optimizers_made(module: Module) -> Made:
    found: Made = {}
    for scope in scopes_of(module):
        for statement in scope.statements:
            node = statement.node
            for target in node.targets if isinstance(node, ast.Assign) else ():
                assert isinstance(node, ast.Assign)
                name = dotted(target)
                if name is not None and isinstance(node.value, ast.Call) and _makes_one(node.value, name):
                    found.setdefault(name, []).append((node.value, statement.place))
    return found


def _makes_one(call: ast.Call, name: str) -> bool:
    is_class = bool(of_optimizer(dotted(call.func) or "", [{PARAMETERS}]))
    return bool(call.args or call.keywords) and (is_class or is_optimizer(name.rpartition(".")[2].lower()))


def _stepped(call: ast.Call) -> Iterator[str]:
    """Yield the models whose parameters a call is given; of a function the models too."""
    is_class = bool(of_optimizer(dotted(call.func) or "", [{PARAMETERS}]))
    for given in every_argument(call):
        if not is_class and (name := dotted(given)) is not None:
            yield name
        for node in ast.walk(given):
            func = node.func if isinstance(node, ast.Call) else None
            if isinstance(func, ast.Attribute) and func.attr in {"named_parameters", "parameters"}:
                yield dotted(func.value) or ""
