"""What expressions of a project's files may be: FSDP1 models, what holds some, and what makes some.

The steps to what is held are those of :mod:`fsdp_migrate.source.python.held`.
"""

from __future__ import annotations

import ast
import functools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from fsdp_migrate.source import catalog
from fsdp_migrate.source.bound_since import is_bound_since
from fsdp_migrate.source.constant_arguments import ToldOff
from fsdp_migrate.source.framework_models import FrameworkModels, unwrapped
from fsdp_migrate.source.given_back import argument, given_back, takes_off
from fsdp_migrate.source.left_branches import LeftBranches
from fsdp_migrate.source.method_order import runs_before
from fsdp_migrate.source.optimizers_of_others import of_others
from fsdp_migrate.source.other_launches import is_of_other_engine
from fsdp_migrate.source.project import NOWHERE, Definition, Place, Project, Start, dotted, either, start_of
from fsdp_migrate.source.project_arguments import given_to, is_bare, is_owed, is_parameter, returned_to
from fsdp_migrate.source.project_callees import Callees
from fsdp_migrate.source.project_containers import held_by, step_of, text_of
from fsdp_migrate.source.project_fields import fields_of, stands_for_attribute
from fsdp_migrate.source.project_globals import Globals
from fsdp_migrate.source.project_names import Named, read_by_name
from fsdp_migrate.source.project_switches import Mark, comes_to, made_below
from fsdp_migrate.source.project_tensors import ProjectTensors
from fsdp_migrate.source.python.accelerate_models import NORM
from fsdp_migrate.source.python.argument_places import every_argument, parameters_of
from fsdp_migrate.source.python.held import (
    ARGUMENT,
    COMPILED,
    EACH,
    FLAT,
    UNSHARDED,
    attribute,
    has_model,
    of_compiled,
    parameters_in,
    put,
    stood_for,
    taken,
    tensors,
    whole,
    without_models,
)
from fsdp_migrate.source.python.held_calls import Given, is_known, of_function, of_method
from fsdp_migrate.source.python.optimizers import has_groups, of_optimizer
from fsdp_migrate.source.python.parameters import PARAMETERS, SAME_PARAMETERS
from fsdp_migrate.source.python.switched_off import is_switched_off
from fsdp_migrate.source.python.wrappers import AROUND_MODEL, SAME_MODEL, compiled, made_by
from fsdp_migrate.source.renamed_functions import RenamedFunctions


if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from fsdp_migrate.source.project import Module
    from fsdp_migrate.source.project_scopes import Scope


IS = "is:"
"""Before the key of a class: an object that a call of it made, with what that call gave."""
ANY = "any:"
"""The same, of an object that is made elsewhere."""
BARE = "bare:"
"""The same, of an object whose call gave the constructor none of the models that other calls give it."""
_OBJECTS = frozenset({IS, ANY, BARE})
MAKES_ONE = "makes:"
"""Before what calling it gives: of a class, a partial of it, or what returns a model."""
MODELS = frozenset({"fsdp", "ddp", "fsdp2", "params"})
# What modules call the one that they wrap, and whose parameters are theirs.
_HELD = ("module", "model")

Fact = tuple[str, str]
Key = str | Fact


@dataclass(eq=False)
class ProjectKinds:
    """Facts about names, and what follows from them for expressions. Reads only; nothing is run."""

    project: Project
    facts: dict[Fact, set[str]] = field(default_factory=dict)
    """What a name of a scope may be, by the scope's key and the name."""
    made: dict[Fact, list[Mark]] = field(default_factory=dict)
    """Where a name is made a model."""
    compiled_at: dict[Fact, list[Mark]] = field(default_factory=dict)
    """Where a name is given a model that ``torch.compile`` gave, sharded or not."""
    inner: dict[Fact, set[Start]] = field(default_factory=dict)
    """The statements that shard what a name is, in place: ``net`` of ``model = FSDP(net)``."""
    from_others: dict[Fact, set[str]] = field(default_factory=dict)
    """The part of the facts about parameters and attributes that calls of other files tell."""
    set_on_own: dict[Fact, bool] = field(default_factory=dict)
    """The attributes that are set from outside of a class, and whether on objects made there alone."""
    below: dict[Fact, set[str]] = field(default_factory=dict)
    """What classes that derive from one have in an attribute, where its own methods see them."""
    not_run: dict[str, set[str]] = field(default_factory=dict)
    """The methods of those classes that all these have their own of, by the key of the class."""
    returns: dict[str, set[str]] = field(default_factory=dict)
    """What a function gives, by its key."""
    derived: dict[str, list[Definition]] = field(default_factory=dict)
    """The classes that derive from one, by its key."""
    methods_below: set[str] = field(default_factory=set)
    """The names of the methods that these have themselves."""
    known: dict[str, Definition] = field(default_factory=dict)
    """The classes that objects are known of, by their keys."""
    seen: dict[ast.expr, set[str]] = field(default_factory=dict, repr=False)
    """What expressions were found to be since facts were last looked for."""
    names_seen: dict[tuple[Scope | None, Path, str, str], set[str]] = field(default_factory=dict, repr=False)
    """The same of names."""
    frameworks: FrameworkModels = field(default_factory=FrameworkModels)
    asker: Scope | None = None
    """The scope whose statements are gone through."""
    askers: dict[Key, set[Scope]] = field(default_factory=dict, repr=False)
    """The scopes that asked for what is known of a name, a function's result or a class, known or not."""
    told_off: ToldOff = field(default_factory=ToldOff, repr=False)
    left: LeftBranches = field(default_factory=LeftBranches, repr=False)
    _asked_of: set[ast.expr] = field(default_factory=set, repr=False)
    _given_back: dict[str, str | None] = field(default_factory=dict, repr=False)
    _order: dict[tuple[str, frozenset[str]], bool] = field(default_factory=dict, repr=False)

    def kinds(self, node: ast.expr, place: Place) -> set[str]:
        """Return what an expression may be, and what it may hold."""
        found = self.seen.get(node)
        if found is None:
            if node in self._asked_of:
                return set()  # made of itself, in a loop: `x = Path(x).stem`
            self._asked_of.add(node)
            try:
                found = self._find_kinds(node, place)
            finally:
                self._asked_of.discard(node)
            if tensors(found) and self.tensors.is_whole(node, place):
                found = found - tensors(found)
            self.seen[node] = found
        return found

    def _find_kinds(self, node: ast.expr, place: Place) -> set[str]:
        if isinstance(node, ast.Call):
            named = read_by_name(node)
            found = self._call_kinds(node, place) if named is None else self._named_kinds(named, node, place)
            return found or self.tensors.made_of(node, place)
        if isinstance(node, ast.IfExp):
            return either([(each, self.kinds(each, place)) for each in (node.body, node.orelse)])
        if isinstance(node, ast.BoolOp):
            parts = node.values if isinstance(node.op, ast.Or) else node.values[-1:]
            return either([(each, self.kinds(each, place)) for each in parts])
        if isinstance(node, (ast.Await, ast.NamedExpr)):
            return self.kinds(node.value, place)
        if isinstance(node, ast.Subscript):
            kinds = self.kinds(node.value, place)
            if isinstance(node.slice, ast.Slice):
                return put(EACH, taken(EACH, kinds))
            return taken(step_of(node), kinds)
        if isinstance(node, (ast.Name, ast.Attribute)):
            text = dotted(node)
            if text is not None:
                return self.text_kinds(text, node, place) or self.tensors.made_of(node, place)
            value = cast_attribute(node)
            found = self.attribute_kinds(self.kinds(value.value, place), value.attr)
            return found or self.tensors.made_of(node, place)
        return held_by(lambda each: self.kinds(each, place), node) or self.tensors.made_of(node, place)

    def _named_kinds(self, named: Named, node: ast.expr, place: Place) -> set[str]:
        """Return what ``getattr(self, "model", None)`` is, or what stands for it."""
        found = self.text_kinds(named.text, node, place)
        return found | (self.kinds(named.value, place) if named.value is not None else set())

    def text_kinds(self, text: str, node: ast.expr, place: Place) -> set[str]:
        """Return what a name, or an attribute of one, may be."""
        found = self.of_names(text, place)
        if place.loops and any(self.objects_in(found)) and (later := made_below(place, text)):
            found = {each for each in found if each.rpartition(".")[2].rpartition(":")[2] not in later}
        if "fsdp" in found and (is_of_other_engine(place) or self._is_before(text, node, place)):
            here = f"{place.module.path}:{place.scope}", text
            # By what shards it below alone, nothing is known of it above.
            is_inner = here in self.inner and {e.start for e in self.made.get(here, ())} <= self.inner[here]
            found -= {"fsdp", "other", COMPILED} if is_inner else {"fsdp", COMPILED}
        if not {COMPILED, UNSHARDED}.isdisjoint(found) and not self._is_compiled(text, node, place):
            found -= {COMPILED, UNSHARDED}
        start, _, last = text.rpartition(".")
        if last in catalog.WRAPPED and start:
            inner = whole(self.text_kinds(start, node, place))
            found |= inner if "fsdp" in inner else set()  # of FSDP1's wrapper
        known = self.project.qualified(text, place)
        found |= {f"{MAKES_ONE}{kind}" for kind in made_by(known)}
        for definition in self.called(node, place):
            returned = returned_to(self, node, place, definition)
            found |= {f"{MAKES_ONE}{kind}" for kind in returned if kind in MODELS}
            if isinstance(definition.node, ast.ClassDef) and self.project.is_subclass(definition):
                found.add(f"{MAKES_ONE}fsdp")
        return found

    def of_names(self, text: str, place: Place) -> set[str]:
        """Return what is known of a name, and of an attribute by the object that it is one of."""
        asked = self.asker, place.module.path, place.scope, text
        known = self.names_seen.get(asked)
        if known is None:
            known = self.names_seen[asked] = self._find_names(text, place)
        return known | self.frameworks.of_name(text, place)

    def _find_names(self, text: str, place: Place) -> set[str]:
        found = self.lookup(text, place)
        if text == "self" and (owner := self.project.class_of(place)) is not None:
            self.known[owner.key] = owner
            found = found | {f"{ANY}{owner.key}"}
        start, _, last = text.rpartition(".")
        if start and start not in {"self", "cls"}:
            found = found | self.attribute_kinds(self.of_names(start, place), last)
        return found

    def attribute_kinds(self, kinds: Collection[str], name: str) -> set[str]:
        """Return what an attribute of an object may be."""
        found = taken(attribute(name), kinds)
        for owner, start in self.objects_in(kinds):
            if start == ANY or name not in fields_of(self.project, owner)[0]:
                kinds_here = self.of_class(owner, f"self.{name}")
                is_plain = start == BARE and has_model(kinds_here) and is_owed(self, owner, name)
                found |= without_models(kinds_here) if is_plain else kinds_here
                if start == BARE and self.set_on_own.get((owner.key, f"self.{name}")) is False:
                    found.add("other")  # what is set on one object of a class need not be on another
        return found

    def delegated(self, owner: Definition, kinds: Collection[str]) -> set[str]:
        """Return what an object of a class stands for, which hands on what it is asked: a model's wrapper."""
        inner = stands_for_attribute(owner)
        within = self.attribute_kinds(kinds, inner) if inner is not None else set()
        return stood_for(inner, within)

    def objects_in(self, kinds: Collection[str]) -> Iterator[tuple[Definition, str]]:
        """Yield the classes that something is an object of, and how it is made."""
        for kind in kinds:
            start, mark, key = kind.partition(":")
            if mark and f"{start}:" in _OBJECTS:
                owner = self.known.get(key)
                if owner is not None:
                    yield owner, f"{start}:"

    def made_elsewhere(self, kinds: Collection[str]) -> Iterator[Definition]:
        """Yield the classes of those of the objects that are made elsewhere."""
        yield from (owner for owner, start in self.objects_in(kinds) if start == ANY)

    def _is_before(self, text: str, node: ast.expr, place: Place) -> bool:
        """Tell whether a name is used above the lines of its function that make it one, or without them."""
        scope = f"{place.module.path}:{place.scope}"
        made = self.made.get((scope, text))
        if not made and text.startswith("self."):
            return self._runs_before(text, place)
        if not made:
            return self.left.hold(place, text.partition(".")[0])
        if self.from_others.get((scope, text)):
            return False
        here = replace(place, start=place.start if place.start != NOWHERE else start_of(node))
        return not any(
            comes_to(self.project, mark, here, text) and not is_bound_since(self, mark, text, here)
            for mark in made
        )

    def _is_compiled(self, text: str, node: ast.expr, place: Place) -> bool:
        """Tell whether a place may have the compiled model that its function, or another, gives a name."""
        fact = f"{place.module.path}:{place.scope}", text
        marks = self.compiled_at.get(fact, ())
        if not marks or COMPILED in self.from_others.get(fact, ()):
            return True
        here = replace(place, start=place.start if place.start != NOWHERE else start_of(node))
        return any(comes_to(self.project, mark, here, text) for mark in marks)

    def _runs_before(self, text: str, place: Place) -> bool:
        """Tell whether a class's constructor runs a method before those that make an attribute a model."""
        owner, (above, _, method) = self.project.class_of(place), place.scope.rpartition(".")
        if owner is None or above != owner.name or self.from_others.get((owner.key, text)):
            return False
        if any((base.key, text) in self.facts for base in self.project.bases(owner)):
            return False
        start = f"{owner.key}."
        made = (key.removeprefix(start) for key, name in self.made if name == text and key.startswith(start))
        later = frozenset(each.split(".", maxsplit=1)[0] for each in made)
        asked = f"{owner.key}.{method}", later
        if asked not in self._order:
            self._order[asked] = runs_before(owner, method, later, self.project.texts.values())
        return self._order[asked]

    def lookup(self, text: str, place: Place) -> set[str]:
        """Return what is known of a name, or of an attribute of ``self``."""
        if text.startswith(("self.", "cls.")):
            owner = self.project.class_of(place)
            name = f"self.{text.partition('.')[2]}"
            own = self.of_class(owner, name)
            if owner is None or "fsdp" in own or place.scope in self.not_run.get(owner.key, ()):
                return own
            return own | self.below.get((owner.key, name), set())
        scope = place.scope
        while True:
            key = (f"{place.module.path}:{scope}", text)
            self.ask(key)
            found = self.facts.get(key)
            # What a call shards of the module's own names is no parameter of the same name.
            if found and not (
                key in self.inner and scope != place.scope and is_parameter(self.project, text, place)
            ):
                return found
            if not scope:
                return self._imported(text, place)
            scope = scope.rpartition(".")[0]

    def _imported(self, text: str, place: Place) -> set[str]:
        """Return what is known of a name of another file's top level, or of an attribute of a class."""
        origin = self.globals.origin(text, place)
        if origin is not None:
            self.ask(origin)
            return set(self.facts.get(origin, ()))
        start, _, last = text.rpartition(".")
        owner = self.project.named(start, place) if start[:1].isupper() else None
        return self.of_class(owner, f"self.{last}") if owner is not None else set()

    def of_class(self, owner: Definition | None, text: str, depth: int = 0) -> set[str]:
        """Return what an attribute of a class, or of one that it derives from, may be."""
        if owner is None or depth > 4:
            return set()
        self.ask((owner.key, text))
        found = set(self.facts.get((owner.key, text), ()))
        for base in self.project.bases(owner):
            found |= self.of_class(base, text, depth + 1)
        return found

    def returned(self, definition: Definition) -> set[str]:
        """Return what a function gives, or which of its arguments."""
        self.ask(definition.key)
        found = self.returns.get(definition.key, set())
        back = self.gives_back(definition) if has_model(found) or "ddp" in found else None
        # Of what takes a wrapper off, all counts where nothing is known of what it is given.
        return found if back is None else {back, *(found if takes_off(definition) else ())}

    def gives_back(self, definition: Definition) -> str | None:
        """Return which argument a function gives back in any case."""
        if definition.key not in self._given_back:
            self._given_back[definition.key] = given_back(self.project, definition)
        return self._given_back[definition.key]

    def _returned_to(self, call: ast.Call, definition: Definition, place: Place) -> set[str]:
        """Return what a call of a function gives."""
        found = returned_to(self, call.func, place, definition)
        if has_model(found) and self.told_off.holds(
            call, definition, place, self.called, lambda text, at: has_model(self.lookup(text, at))
        ):
            return without_models(found)
        found = self.without_others(found, call, definition, place)
        back = next((kind for kind in found if kind.startswith(ARGUMENT)), None)
        given = argument(call, back) if back is not None else None
        return (self.kinds(given, place) if given is not None else set()) or found - {back or ""}

    def without_others(self, found: set[str], call: ast.Call, definition: Definition, at: Place) -> set[str]:
        """Return what a call gives, without parameters of a model that other calls give the function."""
        found = found - of_others(self, found, call, definition, at)
        theirs, node = parameters_in(found), definition.node
        if not theirs or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return found
        own = (self.facts.get((definition.key, each.arg), set()) for each in parameters_of(node))
        given = (self.kinds(each, at) for each in every_argument(call))
        is_its = any(map(self._may_hold, given)) or not any(map(self._may_hold, own))
        return found if is_its else found - theirs

    def _may_hold(self, kinds: set[str]) -> bool:
        """Tell whether a model, its parameters or an object that may hold one are among kinds."""
        return is_about(kinds) or bool(tensors(kinds)) or any(self.objects_in(kinds))

    def ask(self, key: Key) -> None:
        """Note that the scope which is gone through depends on what is known of something."""
        if self.asker is not None:
            self.askers.setdefault(key, set()).add(self.asker)

    def _call_kinds(self, call: ast.Call, place: Place) -> set[str]:
        text = dotted(call.func)
        known = self.project.qualified(text, place) if text is not None else ""
        if known in {"functools.partial", "partial"} and call.args:
            is_off = is_switched_off((each.arg or "", ast.unparse(each.value)) for each in call.keywords)
            return (
                set() if is_off else {e for e in self.kinds(call.args[0], place) if e.startswith(MAKES_ONE)}
            )
        if known in AROUND_MODEL and len(call.args) > AROUND_MODEL[known]:
            return compiled({known}, self.kinds(call.args[AROUND_MODEL[known]], place))
        inner = unwrapped(call, place)
        found = self.frameworks.of_call(call, place) if inner is None else self.kinds(inner, place)
        for definition in self.called(call.func, place):
            if isinstance(definition.node, ast.ClassDef):
                self.known[definition.key] = definition
                # A subclass of FSDP1's is no object that holds a model: a call of it makes one.
                if not self.project.is_subclass(definition):
                    start = BARE if is_bare(self, definition, call, place) else IS
                    found |= {f"{start}{definition.key}"} | self._fields(definition, call, place)
                    found |= self.delegated(definition, found) if start == IS else set()
            found |= self._returned_to(call, definition, place)
        for definition in self.overriding(call.func, place):
            returned = self.returned(definition)
            found |= returned | {"other"} if returned else set()
        makes = (kind for kind in self.kinds(call.func, place) if kind.startswith(MAKES_ONE))
        made = {kind.removeprefix(MAKES_ONE) for kind in makes}
        found |= made | (
            of_compiled(self.kinds(call.args[0], place)) if "fsdp" in made and call.args else set()
        )
        if isinstance(call.func, ast.Attribute) and call.func.attr in SAME_MODEL:
            found |= whole(self.kinds(call.func.value, place))
        if isinstance(call.func, ast.Attribute) and call.func.attr in PARAMETERS:
            kinds = self.kinds(call.func.value, place)
            inside = (self.attribute_kinds(kinds, name) for name in _HELD)
            found |= {"params"} if "fsdp" in kinds.union(*inside) else set()
        elif text in SAME_PARAMETERS:
            found |= {kind for arg in call.args for kind in self.kinds(arg, place) if kind == "params"}
        found = found or self._given_by(call, place)
        stepped = [*call.args[:1], *(each.value for each in call.keywords if each.arg == "params")]
        return found or of_optimizer(text or "", (self.kinds(each, place) for each in stepped))

    def _given_by(self, call: ast.Call, place: Place) -> set[str]:
        """Return what a call of Python's own functions gives of what holds models."""
        text = dotted(call.func) or ""
        known = self.project.qualified(text, place)
        name = (known or text).split(".")[-1]
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        if not is_known(name) and not is_known(method):
            return set()
        given = Given(
            [self.kinds(arg, place) for arg in call.args if not isinstance(arg, ast.Starred)],
            [*given_to(call, lambda each: self.kinds(each, place))[1].items()],
            {number: text for number, text in enumerate(map(text_of, call.args)) if text is not None},
        )
        if isinstance(call.func, ast.Attribute):
            found = of_method(method, self.kinds(call.func.value, place), given)
            if found or not known:
                return found
        return of_function(name, given)

    def _fields(self, definition: Definition, call: ast.Call, place: Place) -> set[str]:
        """Return what a call gives to the fields of a dataclass or a named tuple."""
        order, is_tuple = fields_of(self.project, definition)
        found: set[str] = set()
        for number, arg in enumerate(call.args[: len(order)]):
            if isinstance(arg, ast.Starred):
                break
            kinds = self.kinds(arg, place)
            found |= put(attribute(order[number]), kinds) | (put(str(number), kinds) if is_tuple else set())
        for each in call.keywords if order else ():
            if each.arg:
                kinds = self.kinds(each.value, place)
                found |= put(attribute(each.arg), kinds)
                if is_tuple and each.arg in order:
                    found |= put(str(order.index(each.arg)), kinds)
        return found

    def called(self, func: ast.expr, place: Place, depth: int = 0) -> Iterator[Definition]:
        """Yield the functions and classes of the project that an expression names."""
        return self._callees.called(func, place, depth)

    def overriding(self, func: ast.expr, place: Place) -> Iterator[Definition]:
        """Yield the methods that classes below the one around, or an object's, have for ``self.build``."""
        return self._callees.overriding(func, place)

    @functools.cached_property
    def _callees(self) -> Callees:
        return Callees(self)

    @functools.cached_property
    def tensors(self) -> ProjectTensors:
        """Parameters and gradients by themselves."""
        return ProjectTensors(self)

    @functools.cached_property
    def globals(self) -> Globals:
        """The names of files' top levels."""
        return Globals(self.project)

    @functools.cached_property
    def renamed(self) -> RenamedFunctions:
        """The other names that functions have."""
        return RenamedFunctions(self.project)

    def models_of(self, module: Module) -> set[str]:
        """Return what FSDP1's models are called in a file."""
        start = f"{module.path}:"
        return {
            text for (key, text), kinds in self.facts.items() if key.startswith(start) and "fsdp" in kinds
        }


def cast_attribute(node: ast.expr) -> ast.Attribute:
    """Return an attribute of what is no name."""
    assert isinstance(node, ast.Attribute)
    return node


def is_about(kinds: Collection[str]) -> bool:
    """Tell whether FSDP1's models are among what an expression may be or hold."""
    if {"params", f"{MAKES_ONE}fsdp", FLAT, NORM} & set(kinds) or has_model(kinds) or has_groups(kinds):
        return True
    return any(kind.endswith((f">{MAKES_ONE}fsdp", f">{NORM}")) for kind in kinds)  # `{"fsdp": wrap}`
