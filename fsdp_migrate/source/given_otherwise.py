"""What calls give to functions that they do not name: handed over, kept, or picked by a name."""

from __future__ import annotations

import ast
import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fsdp_migrate.source.handed_functions import handed_over, is_partial
from fsdp_migrate.source.held_callables import called_parameter, given_callables
from fsdp_migrate.source.item_methods import ItemMethods, takes
from fsdp_migrate.source.looked_up_functions import looked_up
from fsdp_migrate.source.project import Definition, Place, dotted
from fsdp_migrate.source.project_arguments import bound, rest_of
from fsdp_migrate.source.project_facts import ProjectFacts
from fsdp_migrate.source.python.held import has_model
from fsdp_migrate.source.renamed_functions import Value


if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from fsdp_migrate.source.project_kinds import Fact


@dataclass(eq=False)
class GivenOtherwise(ProjectFacts):
    """Adds what parameters are given by calls that do not name their function."""

    around: Iterable[str | os.PathLike[str]] = field(kw_only=True)
    """The files and folders that were given, where configs may be."""
    callables: dict[Fact, list[tuple[ast.expr, Place]]] = field(default_factory=dict, repr=False)
    """What parameters that are called are given, by their function or class and their name, so far."""

    @functools.cached_property
    def items(self) -> ItemMethods:
        """The methods of what lists hold of which nothing shows the class."""
        return ItemMethods(self.project, self.around)

    def give_otherwise(
        self, call: ast.Call, place: Place, given: list[set[str]], named: dict[str, set[str]]
    ) -> None:
        """Note what a call gives to functions that it hands over, or that are picked out of a dict."""
        handed = handed_over(call, lambda node: self.kinds(node, place))
        if handed is not None:
            self._give_named(handed.func, place, call, handed.given, handed.named)
        elif not any(self.called(call.func, place)):
            for node in (call.func, *(each.node for each in self.renamed.at(dotted(call.func) or "", place))):
                self._give_picked(node, place, call, given, named)
            asked = functools.partial(self.kinds, place=place)
            for each in (*self.items.called(call, place, asked), *self.items.instantiated(call, asked)):
                self._give(each, call, given, named)
            if has_model(set().union(*given)):
                self._give_held(call.func, place, call, given, named)

    def _give_picked(
        self,
        node: ast.expr,
        place: Place,
        call: ast.Call,
        given: list[set[str]],
        named: dict[str, set[str]],
    ) -> None:
        for value, where in self.picked.of(node, place):
            self._give_value(value, where, call, given, named)
        made = Value(node, place) if isinstance(node, ast.Call) else None
        for each in (
            *self.picked.registered(node, place),
            *(self.renamed.given_by(made) if made is not None else ()),
        ):
            self._give(each, call, given, named)
        found = [each for each in looked_up(self.project, node, place) if takes(each, call)]
        if len(found) > 1:
            given = [_in_doubt(each) for each in given]
            named = {name: _in_doubt(each) for name, each in named.items()}
        for each in found:
            self._give(each, call, given, named)
        for side in (node.body, node.orelse) if isinstance(node, ast.IfExp) else ():
            self._give_value(side, place, call, given, named)
        if isinstance(node, ast.Lambda):
            self._give_lambda(node, place, given)

    def _give_value(
        self, value: ast.expr, where: Place, call: ast.Call, given: list[set[str]], named: dict[str, set[str]]
    ) -> None:
        """Note what a call gives to a function by what it is kept as: a name, a partial, a parameter."""
        if isinstance(value, ast.Lambda):
            self._give_lambda(value, where, given)
        elif isinstance(value, ast.Call) and is_partial(value):
            before = [self.kinds(each, where) for each in value.args[1:]]
            self._give_value(value.args[0], where, call, [*before, *given], named)
        elif isinstance(value, ast.Call):
            for each in self.renamed.given_by(Value(value, where)):
                self._give(each, call, given, named)
        elif any(self.called(value, where)):
            self._give_named(value, where, call, given, named)
        else:
            self._give_held(value, where, call, given, named)

    def _give_held(
        self, func: ast.expr, where: Place, call: ast.Call, given: list[set[str]], named: dict[str, set[str]]
    ) -> None:
        """Note what a call gives to functions that were given away by their names, or as lambdas."""
        kept = called_parameter(self.project, func, where)
        if kept is None:
            return
        owner, name = kept
        if (owner.key, name) not in self.callables:
            self.callables[owner.key, name] = [*given_callables(self.project, self.called, owner, name)]
        for value, place in self.callables[owner.key, name]:
            if isinstance(value, ast.Lambda):
                self._give_lambda(value, place, given)
            else:
                self._give_named(value, place, call, given, named)

    def _give_lambda(self, value: ast.Lambda, where: Place, given: list[set[str]]) -> None:
        """Note what a function without a name gives on: ``lambda m: train(m, config)``."""
        names = dict(zip([arg.arg for arg in value.args.args], given, strict=False))
        inner = value.body
        if isinstance(inner, ast.Call):
            here = [names.get(arg.id, set()) if isinstance(arg, ast.Name) else set() for arg in inner.args]
            self._give_named(inner.func, where, inner, here, {})

    def _give_named(
        self, func: ast.expr, where: Place, call: ast.Call, given: list[set[str]], named: dict[str, set[str]]
    ) -> None:
        for definition in self.called(func, where):
            self._give(definition, call, given, named)

    def _give(
        self, definition: Definition, call: ast.Call, given: list[set[str]], named: dict[str, set[str]]
    ) -> None:
        is_class = isinstance(definition.node, ast.ClassDef)
        made = self.project.method(definition, "__init__") if is_class else definition
        if made is None:
            return
        for name, kinds in (*bound(made, call, given, named), *rest_of(made, given, named)):
            if kinds:
                self.look_at([made.module.path])
                self.add_unseen((made.key, name), kinds)

    def add_unseen(self, parameter: Fact, kinds: set[str]) -> None:
        """Note what a parameter is given by a call that does not name its function."""
        if has_model(kinds) and self.left.note_other(parameter):
            self._found_more(parameter)
        self._give_one(parameter, kinds, is_told=True)


def _in_doubt(kinds: set[str]) -> set[str]:
    """Return what a function may be given that is one of several which a name may stand for."""
    return kinds | {"other"} if "fsdp" in kinds else kinds
