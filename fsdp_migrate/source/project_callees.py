"""Which functions and classes of a project an expression calls, as far as names, objects and bases tell."""

from __future__ import annotations

import ast
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fsdp_migrate.source.given_texts import GivenTexts
from fsdp_migrate.source.project import dotted


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fsdp_migrate.source.project import Definition, Place
    from fsdp_migrate.source.project_kinds import ProjectKinds


DERIVED = "derived:"
"""Before the name of a method: the scopes that ask for it of classes below another."""
_CALLED = "__call__"
_DEEPEST = 3


@dataclass(frozen=True, eq=False)
class Callees:
    """Answers what is called, by what is known of names. Reads only."""

    known: ProjectKinds

    @functools.cached_property
    def texts(self) -> GivenTexts:
        """The texts that names stand for."""
        return GivenTexts(self.known.project)

    def called(self, func: ast.expr, place: Place, depth: int = 0) -> Iterator[Definition]:
        """Yield the functions and classes of the project that an expression names."""
        text = dotted(func)
        if text is None:
            # What a name is bound to may be made of that name: `model = model.to(device)`.
            is_bound = isinstance(func, ast.Call) and depth > 0
            yield from () if is_bound else self._methods_of(func, place)
            return
        root, _, rest = text.partition(".")
        if root == "super()":
            yield from self._above(rest, place)
            return
        if text == "cls" and (owner := self.known.project.class_of(place)) is not None:
            yield owner
            return
        if root in {"self", "cls"} and rest:
            own = self.known.project.own(rest, place)
            if own is not None:
                yield own
                return
        definition = self.known.project.named(text, place)
        if definition is not None:
            yield from (definition, *self.known.project.named_elsewhere(text, place))
            return
        for value in self.known.renamed.at(text, place) if depth < _DEEPEST else ():
            if dotted(value.node) != text:
                yield from self.known.renamed.given_by(value)
                yield from self.called(value.node, value.place, depth + 1)
        yield from self._by_objects(text, place)

    def _by_objects(self, text: str, place: Place) -> Iterator[Definition]:
        """Yield the method that a name stands for by the object that it is one of, or is."""
        start, _, last = text.rpartition(".")
        for holder, name in ((start, last), (text, _CALLED)):
            for owner, _ in (
                tuple(self.known.objects_in(self.known.of_names(holder, place))) if holder else ()
            ):
                yield from self._method(owner, name)

    def _method(self, owner: Definition, name: str) -> Iterator[Definition]:
        """Yield a method of an object: where it is called, and a module has no other, its ``forward``."""
        method = self.known.project.method(owner, name)
        is_module = isinstance(owner.node, ast.ClassDef) and bool(owner.node.bases)
        if method is None and name == _CALLED and is_module:
            method = self.known.project.method(owner, "forward")
        yield from () if method is None else (method,)

    def _methods_of(self, func: ast.expr, place: Place) -> Iterator[Definition]:
        """Yield the methods of an object that is made where it is called: ``Saver(cfg).save``.

        Also of one that is asked for them by their names: ``getattr(callback, event)``.
        """
        is_made = isinstance(func, ast.Call) and dotted(func.func) != "getattr"
        if isinstance(func, ast.Attribute) or is_made:
            node, name = (func.value, func.attr) if isinstance(func, ast.Attribute) else (func, _CALLED)
            yield from self._of_objects(node, [name], place)
        elif isinstance(func, ast.Call) and dotted(func.func) == "getattr" and len(func.args) > 1:
            yield from self._of_objects(func.args[0], self.texts.of(func.args[1], place), place)

    def _of_objects(self, node: ast.expr, names: Iterable[str], place: Place) -> Iterator[Definition]:
        """Yield the methods of some names that an object's class has."""
        for owner, _ in tuple(self.known.objects_in(self.known.kinds(node, place))):
            yield from (method for name in names for method in self._method(owner, name))

    def _above(self, name: str, place: Place) -> Iterator[Definition]:
        """Yield the methods that ``super()`` stands for."""
        owner = self.known.project.class_of(place)
        for base in self.known.project.bases(owner) if owner is not None else ():
            method = self.known.project.method(base, name)
            yield from () if method is None else (method,)

    def overriding(self, func: ast.expr, place: Place) -> Iterator[Definition]:
        """Yield the methods that classes below the one around, or an object's, have for ``self.build``."""
        if not isinstance(func, ast.Attribute):
            return
        name = func.attr
        self.known.ask(f"{DERIVED}{name}")
        if name not in self.known.methods_below:
            return
        todo = [(owner, 0) for owner in self.known.made_elsewhere(self.known.kinds(func.value, place))]
        while todo:
            above, depth = todo.pop()
            for below in self.known.derived.get(above.key, ()) if depth < _DEEPEST else ():
                # Of several classes that one derives from, the first that has it counts: a mixin's.
                is_mixed = len(self.known.project.bases(below)) > 1
                own = self.known.project.method(below, name) if is_mixed else None
                own = own or below.module.definitions.get(f"{below.name}.{name}")
                yield from () if own is None or own.owner is above else (own,)
                todo.append((below, depth + 1))
