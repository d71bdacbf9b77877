"""What is made by what a project picks when it runs: out of a dict, a registry, or a module by a name."""

from __future__ import annotations

import ast
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fsdp_migrate.source.looked_up_functions import looked_up
from fsdp_migrate.source.optimizers_before import OptimizersBefore
from fsdp_migrate.source.picked_functions import PickedFunctions
from fsdp_migrate.source.project import Place, dotted
from fsdp_migrate.source.project_fields import stands_for_attribute
from fsdp_migrate.source.project_kinds import ANY, MAKES_ONE, MODELS, ProjectKinds
from fsdp_migrate.source.python.held import has_model, whole
from fsdp_migrate.source.python.walked import walked
from fsdp_migrate.source.registries import Registries


if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from fsdp_migrate.source.given_texts import GivenTexts
    from fsdp_migrate.source.project import Definition


@dataclass(eq=False)
class PickedKinds(ProjectKinds):
    """Adds what calls give of which nothing tells what they call, but what it is picked of."""

    @functools.cached_property
    def picked(self) -> PickedFunctions:
        """What stands in dicts and lists of functions."""
        return PickedFunctions(self.project, self.globals)

    @functools.cached_property
    def registries(self) -> Registries:
        """What stands in registries."""
        return Registries(self.project, self.globals)

    @property
    def texts(self) -> GivenTexts:
        """The texts that names stand for."""
        return self._callees.texts

    @functools.cached_property
    def _before(self) -> OptimizersBefore:
        return OptimizersBefore()

    def text_kinds(self, text: str, node: ast.expr, place: Place) -> set[str]:
        """Return what a name may be; of an optimizer too that was made before its model was sharded."""
        found = super().text_kinds(text, node, place)
        return found or self._before.kinds(text, place, functools.partial(self._is_sharded_at, node))

    def _is_sharded_at(self, node: ast.expr, model: str, place: Place) -> bool:
        return bool(model) and "fsdp" in super().text_kinds(model, node, place)

    def _find_kinds(self, node: ast.expr, place: Place) -> set[str]:
        if isinstance(node, ast.Lambda):
            return {f"{MAKES_ONE}{kind}" for kind in whole(self.kinds(node.body, place)) & MODELS}
        found = super()._find_kinds(node, place)
        if (
            not found
            and isinstance(node, ast.Subscript)
            and place.module.path in self.registries.by_functions
        ):
            given = self._given_by_one(self.picked.registered(node, place))
            found = {f"{MAKES_ONE}{kind}" for kind in (given | {"other"} if given else given)}
        if isinstance(node, ast.Dict):
            # Of classes, which are called to make objects: `{"fsdp": ShardedStrategy}`.
            found = found | {f"item>{kind}" for each in node.values for kind in self._of_class(each, place)}
        return found

    def _of_class(self, node: ast.expr, place: Place) -> Iterator[str]:
        text = dotted(node)
        owner = self.project.named(text, place) if text is not None else None
        if owner is not None and isinstance(owner.node, ast.ClassDef) and not self.project.is_subclass(owner):
            self.known[owner.key] = owner
            yield f"{MAKES_ONE}{ANY}{owner.key}"

    def attribute_kinds(self, kinds: Collection[str], name: str) -> set[str]:
        """Return what an attribute of an object may be, also of one that hands on what it is asked.

        And of a dataclass that sets a field anew, when it has been given that.
        """
        found, left, seen = super().attribute_kinds(kinds, name), [kinds], set[str]()
        while left:
            here = left.pop()
            for owner, _ in [each for each in self.objects_in(here) if each[0].key not in seen]:
                seen.add(owner.key)
                if (f"{owner.key}.__post_init__", f"self.{name}") in self.made:
                    found |= self.of_class(owner, f"self.{name}")
                inner = stands_for_attribute(owner)
                if inner is not None and inner != name:
                    left.append(super().attribute_kinds(here, inner))
                    found |= super().attribute_kinds(left[-1], name)
        return found

    def _call_kinds(self, call: ast.Call, place: Place) -> set[str]:
        found = super()._call_kinds(call, place)
        return found or self.picked_kinds(call, place)

    def picked_kinds(self, call: ast.Call, place: Place) -> set[str]:
        """Return what a call gives of which it is picked at run time what it calls; or another thing."""
        func = call.func
        names = [func] if dotted(func) is None else []
        names += [each.node for each in self.renamed.at(dotted(func) or "", place)]
        made = [each for name in names for each in self.picked.registered(name, place)]
        made += [each for name in names for each in looked_up(self.project, name, place)]
        found = self._given_by_one(made)
        for each in (func, *names):
            there, is_given_itself = self.registries.at(each, place)
            given = self._given_by_one(there)
            found |= given
            found |= {f"{MAKES_ONE}{kind}" for kind in given | {"other"} if given and is_given_itself}
        by_names = self._kinds_by_names(call, place)
        return (found | {"other"} if found else found) | by_names

    def _kinds_by_names(self, call: ast.Call, place: Place) -> set[str]:
        """Return what ``getattr(self, name)`` may be, of the names that are written for it."""
        if dotted(call.func) != "getattr" or len(call.args) < 2 or not isinstance(call.args[1], ast.Name):
            return set()
        start = dotted(call.args[0])
        names = self.texts.of(call.args[1], place) if start is not None else ()
        every = [self.text_kinds(f"{start}.{name}", call.args[0], place) for name in names]
        found = {kind for kinds in every for kind in kinds}
        is_alike = all(whole(kinds) == whole(found) for kinds in every)
        return found if is_alike or not has_model(found) else found | {"other"}

    def by_decorators(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, place: Place
    ) -> set[str]:
        """Return the models that a function gives because of the project's functions that stand above it."""
        found: set[str] = set()
        for each in node.decorator_list:
            func = each.func if isinstance(each, ast.Call) else each
            for by in self.called(func, place) if dotted(func) is not None else ():
                if not isinstance(by.node, ast.ClassDef):
                    made = self._inner_of(by) if isinstance(each, ast.Call) else [by]
                    found |= {kind for inner in made for kind in self.returned(inner)}
        return {kind.removeprefix(MAKES_ONE) for kind in found if kind.startswith(MAKES_ONE)} & MODELS

    def _inner_of(self, definition: Definition) -> list[Definition]:
        """Return the functions in a function that this gives."""
        start = Place(definition.module, definition.name)
        given = (each.value for each in walked(definition.node) if isinstance(each, ast.Return))
        named = (definition.module.definitions.get(f"{start.scope}.{dotted(each)}") for each in given if each)
        return [each for each in named if each is not None]

    def _given_by_one(self, definitions: Iterable[Definition]) -> set[str]:
        found: set[str] = set()
        for each in definitions:
            if not isinstance(each.node, ast.ClassDef):
                found |= self.returned(each)
            elif self.project.is_subclass(each):
                found.add("fsdp")
            else:
                self.known[each.key] = each
                found.add(f"{ANY}{each.key}")
        return found
