"""Attributes that hold a model only where the constructor was given one, over a project's files."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Protocol, TypeVar

from fsdp_migrate.source.always_wrapped import always_wraps
from fsdp_migrate.source.project import Definition, Place, dotted
from fsdp_migrate.source.project_names import is_property
from fsdp_migrate.source.python.argument_places import named_arguments, placed_names
from fsdp_migrate.source.python.held import (
    EACH,
    has_model,
    item,
    items_in,
    put,
    taken,
    tensors,
    whole,
    without_models,
)
from fsdp_migrate.source.python.optimizers import OF_A_MODEL
from fsdp_migrate.source.python.walked import walked
from fsdp_migrate.source.shown_plain import is_shown_plain


if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from fsdp_migrate.source.project import Project
    from fsdp_migrate.source.renamed_functions import RenamedFunctions


T = TypeVar("T")
_MOST_STARRED = 12
_DEEPEST = 4


class Facts(Protocol):
    """What is known of a project's names, as :class:`fsdp_migrate.source.project_kinds.ProjectKinds` is."""

    @property
    def project(self) -> Project:
        """The files."""

    @property
    def facts(self) -> Mapping[tuple[str, str], set[str]]:
        """What a name of a scope may be."""

    @property
    def set_on_own(self) -> Mapping[tuple[str, str], bool]:
        """The attributes that are set from outside of a class, and whether on objects made there alone."""

    def kinds(self, node: ast.expr, place: Place) -> set[str]:
        """Return what an expression may be."""

    def ask(self, key: tuple[str, str]) -> None:
        """Note that what is found depends on something."""

    @property
    def renamed(self) -> RenamedFunctions:
        """What names are given."""

    def called(self, func: ast.expr, place: Place) -> Iterator[Definition]:
        """Yield the functions and classes of the project that an expression names."""

    def returned(self, definition: Definition) -> set[str]:
        """Return what a function gives, or which of its arguments."""

    def objects_in(self, kinds: Collection[str]) -> Iterator[tuple[Definition, str]]:
        """Yield the classes that something is an object of, and how it is made."""


def given_to(
    call: ast.Call, kinds: Callable[[ast.expr], set[str]]
) -> tuple[list[set[str]], dict[str, set[str]]]:
    """Return what a call gives by place and by name, what ``*`` and ``**`` hold too; nothing behind ``*``."""
    placed: list[set[str]] = []
    for arg in call.args:
        if isinstance(arg, ast.Starred):
            inside = kinds(arg.value)
            placed += [taken(str(place), inside) for place in range(_MOST_STARRED)]
            break
        placed.append(kinds(arg))
    named: dict[str, set[str]] = {}
    for each in call.keywords:
        inside = kinds(each.value)
        for name, kinds_here in ({each.arg: inside} if each.arg else items_in(inside)).items():
            named.setdefault(name, set()).update(kinds_here)
    return placed, named


def rest_of(
    definition: Definition, given: list[set[str]], named: dict[str, set[str]]
) -> Iterator[tuple[str, set[str]]]:
    """Yield what ``*args`` and ``**kwargs`` of a function hold of what a call gives it."""
    node = definition.node
    if isinstance(node, ast.ClassDef):
        return
    order = placed_names(node, is_method=definition.owner is not None)
    if node.args.vararg is not None:
        behind = [_near(kinds) for kinds in given[len(order) :]]
        # What a list holds, handed on by `*parts`, stands at any place.
        is_any = len(behind) == _MOST_STARRED and all(kinds == behind[0] for kinds in behind)
        steps = [(EACH, behind[0])] if is_any else [(str(place), each) for place, each in enumerate(behind)]
        yield node.args.vararg.arg, {kind for step, kinds in steps for kind in put(step, kinds)}
    if node.args.kwarg is not None:
        known = {*order, *(arg.arg for arg in node.args.kwonlyargs)}
        others = ((name, kinds) for name, kinds in named.items() if name not in known)
        yield node.args.kwarg.arg, {k for name, kinds in others for k in put(item(name), _near(kinds))}


def _near(kinds: set[str]) -> set[str]:
    """Return what something is itself: what is held, and handed on again and again, would only grow.

    An optimizer is what it holds.
    """
    return whole(kinds) | (kinds & OF_A_MODEL)


def is_by_class(call: ast.Call) -> bool:
    """Tell whether a method is called by its class, with the object: ``Base.__init__(self, model)``."""
    first = dotted(call.args[0]) if call.args else None
    owner = (dotted(call.func) or "").rpartition(".")[0]
    return first == "self" and owner.rpartition(".")[2][:1].isupper()


def is_bare(known: Facts, definition: Definition, call: ast.Call, place: Place) -> bool:
    """Tell whether a call of a class gives its own constructor no parameter that models are given by.

    Or only a model that the place of the call shows to be plain.
    """
    made = definition.module.definitions.get(f"{definition.name}.__init__")
    is_starred = any(isinstance(arg, ast.Starred) for arg in call.args)
    if made is None or is_starred or any(each.arg is None for each in call.keywords):
        return False
    named = named_arguments(call)
    return not any(
        _is_model(known, made, name) and not _is_shown_plain(known, given, place)
        for name, given in bound(made, call, call.args, named)
    )


def _is_shown_plain(known: Facts, node: ast.expr, place: Place) -> bool:
    """Tell whether what a call gives is plain, and so is all that it holds."""
    return is_shown_plain(known, node, place) and not any(
        has_model(known.facts.get((owner.key, f"self.{name}"), ())) and not is_owed(known, owner, name)
        for owner, _ in known.objects_in(known.kinds(node, place))
        for name in _values(owner)
    )


def is_parameter(project: Project, text: str, place: Place) -> bool:
    """Tell whether a name is a parameter of the function of a place, or of what that has."""
    node = project.node(place.module, place.scope)
    every = ast.walk(node.args) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) else ()
    return any(isinstance(each, ast.arg) and each.arg == text.partition(".")[0] for each in every)


def returned_to(known: Facts, func: ast.expr, place: Place, definition: Definition) -> set[str]:
    """Return what a function gives: of a method no models where its object was made of plain ones alone.

    One that it always wraps itself is none of the object's. A property gives what is read, not what it calls.
    """
    if isinstance(definition.node, (ast.FunctionDef, ast.AsyncFunctionDef)) and is_property(definition.node):
        return set()
    found = known.returned(definition)
    is_about = has_model(found) or "params" in found or bool(tensors(found))
    if not is_about or definition.owner is None or not isinstance(func, ast.Attribute):
        return found
    objects = [*known.objects_in(known.kinds(func.value, place))]
    is_plain = bool(objects) and all(
        start == "bare:" and all(_is_owed_or_none(known, owner, name) for name in _values(owner))
        for owner, start in objects
    )
    if not is_plain:
        return found
    own = found & {"fsdp"} if always_wraps(known.project, definition) else set()
    return (without_models(found) - {"params", *tensors(found)}) | own


def _is_owed_or_none(known: Facts, owner: Definition, name: str) -> bool:
    known.ask((owner.key, f"self.{name}"))
    is_model = has_model(known.facts.get((owner.key, f"self.{name}"), ()))
    return not is_model or is_owed(known, owner, name)


def is_owed(known: Facts, owner: Definition, name: str) -> bool:
    """Tell whether an attribute is a model by the parameters of the class's own constructor alone.

    Or by what is set on objects where they are made: ``self.pipe = Pipe(cfg); self.pipe.net = FSDP(net)``.
    """
    text = f"self.{name}"
    known.ask((owner.key, text))
    made = owner.module.definitions.get(f"{owner.name}.__init__")
    is_set = known.set_on_own.get((owner.key, text))
    if made is None or is_set is False or (is_set and _is_model_above(known, owner, text)):
        return False
    place = Place(made.module, made.name)
    values = _values(owner).get(name, [])
    if not set(walked(made.node)).issuperset(values):
        return False
    parts = [part for value in values for part in _parts(value)]
    given = [part for part in parts if isinstance(part, ast.Name) and _is_model(known, made, part.id)]
    is_given = bool(given) or is_set is True
    return is_given and not any(has_model(known.kinds(part, place)) for part in parts if part not in given)


def _is_model_above(known: Facts, owner: Definition, text: str, depth: int = 0) -> bool:
    """Tell whether an attribute is a model by a class that the owner derives from."""
    return depth < _DEEPEST and any(
        has_model(known.facts.get((base.key, text), ())) or _is_model_above(known, base, text, depth + 1)
        for base in known.project.bases(owner)
    )


def is_made_there(project: Project, text: str, place: Place) -> bool:
    """Tell whether a name, or ``self.name``, is bound to what calls of the project's classes make alone."""
    owner = project.class_of(place) if text.startswith("self.") else None
    scope = owner.node if owner is not None else project.node(place.module, place.scope) or place.module.tree
    parameters = scope.args if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)) else None
    if parameters is not None and any(
        each.arg == text for each in ast.walk(parameters) if isinstance(each, ast.arg)
    ):
        return False
    values: dict[ast.AST, ast.expr] = {}
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign):
            values.update((target, node.value) for target in node.targets)
    bound = [
        node
        for node in ast.walk(scope)
        if isinstance(node, (ast.Name, ast.Attribute))
        if isinstance(node.ctx, ast.Store) and dotted(node) == text
    ]
    return bool(bound) and all(_makes_one(project, values.get(node), place) for node in bound)


def _makes_one(project: Project, value: ast.expr | None, place: Place) -> bool:
    """Tell whether a value is a call of a class of the project."""
    called = dotted(value.func) if isinstance(value, ast.Call) else None
    found = project.named(called, place) if called is not None else None
    return found is not None and isinstance(found.node, ast.ClassDef)


def _values(owner: Definition) -> dict[str, list[ast.AST]]:
    """Return what the attributes of ``self`` are set to in a class, or where they are set in another way."""
    if owner.values is None:
        owner.values = {}
        values: dict[ast.expr, ast.expr] = {}
        for node in ast.walk(owner.node):
            if isinstance(node, ast.Assign):
                values.update((target, node.value) for target in node.targets)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                is_own = dotted(node.value) == "self"
                owner.values.setdefault(node.attr, []).append(values.get(node, node) if is_own else node)
    return owner.values


def _parts(node: ast.AST) -> Iterator[ast.expr]:
    """Yield what a value may be: each branch of a choice."""
    if isinstance(node, ast.IfExp):
        yield from (*_parts(node.body), *_parts(node.orelse))
    elif isinstance(node, ast.expr):
        yield node


def _is_model(known: Facts, made: Definition, name: str) -> bool:
    known.ask((made.key, name))
    return has_model(known.facts.get((made.key, name), ()))


def bound(
    definition: Definition, call: ast.Call, given: list[T], named: dict[str, T], fields: Sequence[str] = ()
) -> Iterator[tuple[str, T]]:
    """Yield the parameters, or the ``fields``, that a call gives something to, with what is known of that."""
    node = definition.node
    if isinstance(node, ast.ClassDef):
        is_starred = any(isinstance(arg, ast.Starred) for arg in call.args)
        yield from () if is_starred else zip(fields, given, strict=False)
        yield from named.items()
        return
    order = placed_names(node, is_method=definition.owner is not None)
    yield from zip(order, given, strict=False)
    known = {*order, *(arg.arg for arg in node.args.kwonlyargs)}
    yield from ((name, kinds) for name, kinds in named.items() if name in known)
