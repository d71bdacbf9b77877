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
from fsdp_migrate.source.project_containers import kinds_of_targets
from fsdp_migrate.source.project_facts import ProjectFacts
from fsdp_migrate.source.project_kinds import ANY, MAKES_ONE
from fsdp_migrate.source.property_setters import PropertySetters
from fsdp_migrate.source.python.argument_places import parameters_of
from fsdp_migrate.source.python.held import has_model
from fsdp_migrate.source.renamed_functions import Value
from fsdp_migrate.source.set_by_items import set_by_items


if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterable

    from fsdp_migrate.source.project import Function
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
        return ItemMethods(self.project, self.texts, self.around)

    @functools.cached_property
    def _setters(self) -> PropertySetters:
        return PropertySetters(self.project)

    def _adds(self, call: ast.Call, place: Place) -> None:
        """Note what a call puts into a list, a dict or an object, also by the names that a dict has."""
        super()._adds(call, place)
        for text, kinds in set_by_items(call, place, functools.partial(self.kinds, place=place)):
            self._assign_name(text, kinds, place)
            self._add(self._key(text, place), kinds, from_others=True)

    def _assign(self, target: ast.expr, kinds: set[str], place: Place) -> None:
        """Note what an assignment gives, also to what a call gives: ``Context.get().model = FSDP(net)``."""
        super()._assign(target, kinds, place)
        scope = self.project.node(place.module, place.scope) if place.scope and kinds else None
        if isinstance(scope, ast.ClassDef) and isinstance(target, ast.Name):
            self._add((f"{place.module.path}:{place.scope}", f"self.{target.id}"), kinds, from_others=True)
        for part, here in kinds_of_targets(target, kinds) if kinds and self._is_about(kinds) else ():
            if isinstance(part, ast.Attribute):
                self._look_at_maker(part.value, place)
            if isinstance(part, ast.Attribute) and dotted(part) is None:
                for owner, _ in [*self.objects_in(self.kinds(part.value, place))]:
                    self._add((owner.key, f"self.{part.attr}"), here, from_others=True)
                    self._note_holder(owner.key)
                    self.look_at([owner.module.path])

    def _look_at_maker(self, node: ast.expr, place: Place) -> None:
        """Add the file of the function that gives an object which is given a model: ``ctx = get_ctx()``."""
        made = [node, *(each.node for each in self.renamed.at(dotted(node) or ".", place))]
        for each in made:
            for by in self.called(each.func, place) if isinstance(each, ast.Call) else ():
                self.look_at([by.module.path])

    def _add(self, fact: Fact, kinds: Collection[str], *, from_others: bool = False) -> None:
        """Note what a name may be; what is set by a property's setter is given to that."""
        super()._add(fact, kinds, from_others=from_others)
        if kinds and fact[1].startswith("self."):
            given = self._setters.parameter(fact[0], fact[1].removeprefix("self."))
            if given is not None and not self.from_others.get(given, set()).issuperset(kinds):
                self._add(given, kinds, from_others=True)

    def _is_about(self, kinds: set[str]) -> bool:
        """Tell so of models, of objects that hold some, and of their classes: ``TRAINERS[name]``."""
        made = {kind.removeprefix(MAKES_ONE) for kind in kinds if kind.startswith(f"{MAKES_ONE}{ANY}")}
        return super()._is_about(kinds) or (bool(made) and super()._is_about(made))

    def note_parameters(self, node: Function, place: Place) -> None:
        """Note the parameters that are objects of the project's classes, as their annotations say.

        And those that are a model where a call gives none: ``def save(net=model)``.
        """
        self._note_defaults(node, place)
        for arg in parameters_of(node):
            text = dotted(arg.annotation) if arg.annotation is not None else None
            owner = self.project.named(text, place) if text is not None else None
            if owner is not None and isinstance(owner.node, ast.ClassDef):
                self.known[owner.key] = owner
                scope = f"{place.scope}.{node.name}" if place.scope else node.name
                self._add((f"{place.module.path}:{scope}", arg.arg), {f"{ANY}{owner.key}"}, from_others=True)

    def _note_defaults(self, node: Function, place: Place) -> None:
        placed = [*node.args.posonlyargs, *node.args.args]
        last = placed[len(placed) - len(node.args.defaults) :]
        scope = f"{place.scope}.{node.name}" if place.scope else node.name
        pairs = [*zip(last, node.args.defaults, strict=True)]
        pairs += [(arg, e) for arg, e in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if e]
        for arg, value in pairs:
            if isinstance(value, (ast.Attribute, ast.Name)) and (kinds := self.kinds(value, place)):
                self._add((f"{place.module.path}:{scope}", arg.arg), kinds, from_others=True)

    def give_otherwise(
        self, call: ast.Call, place: Place, given: list[set[str]], named: dict[str, set[str]]
    ) -> None:
        """Note what a call gives to functions that it hands over, or that are picked out of a dict."""
        handed = handed_over(call, lambda node: self.kinds(node, place))
        if handed is not None:
            self._give_named(handed.func, place, call, handed.given, handed.named)
        elif not any(self.called(call.func, place)):
            asked = functools.partial(self.kinds, place=place)
            items = [*self.items.instantiated(call, asked)]
            for node in (call.func, *(each.node for each in self.renamed.at(dotted(call.func) or "", place))):
                self._give_picked(node, place, call, given, named)
                items += self.items.called(call, node, place, asked)
            for each in items:
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
            here = [self._given_on(arg, names) for arg in inner.args]
            self._give_named(inner.func, where, inner, here, {})

    def _given_on(self, node: ast.expr, names: dict[str, set[str]]) -> set[str]:
        """Return what a name, or an attribute of one, is of what a function without a name is given."""
        if isinstance(node, ast.Attribute):
            return self.attribute_kinds(self._given_on(node.value, names), node.attr)
        return names.get(node.id, set()) if isinstance(node, ast.Name) else set()

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
