"""FSDP1 models followed over the files of a project: who makes them, and who is given them.

A file is looked at by itself in :mod:`fsdp_migrate.source.python.models`. What that cannot see is said to it
here: that ``build_model`` of another file returns an FSDP1 model, and that ``train(model)`` is given one.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from fsdp_migrate.source import catalog
from fsdp_migrate.source.asked_methods import asked_for, methods_by_file
from fsdp_migrate.source.handed_on import HandedOn
from fsdp_migrate.source.optimizer_classes import made_beside_models
from fsdp_migrate.source.project import (
    Definition,
    Module,
    Place,
    Project,
    bound,
    calls_of,
    dotted,
    either,
    is_seen_alone,
    named_items,
)
from fsdp_migrate.source.python.links import Links
from fsdp_migrate.source.python.parameters import PARAMETERS, SAME_PARAMETERS
from fsdp_migrate.source.python.wrappers import AROUND_MODEL, MAKES, SAME_MODEL, made_by


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


_MAKES = "makes:"
_IS = "is:"
_MODELS = frozenset({"fsdp", "ddp", "fsdp2", "params"})
_EACH = "each:"
_TOLD = _MODELS | {MAKES, "other"}
_MAX_PASSES = 8
_MAX_TUPLE = 8
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

Fact = tuple[str, str]


def links_of(paths: Iterable[Path]) -> dict[Path, Links]:
    """Return what each file should be told of by the others; those of which nothing is known are left out."""
    project = Project.read(path for path in paths if path.suffix == ".py")
    if not any(catalog.FSDP in text for text in project.texts.values()):
        return {}
    following = _Following(project, HandedOn(project))
    following.run()
    return following.links()


@dataclass(eq=False)
class _Following:
    project: Project
    handed_on: HandedOn
    facts: dict[Fact, set[str]] = field(default_factory=dict)
    """What a name of a scope may be, by the scope's key and the name."""
    made: dict[Fact, list[tuple[int, tuple[ast.AST, ...]]]] = field(default_factory=dict)
    """The lines at which a name is made a model, and the loops around them."""
    from_others: dict[Fact, set[str]] = field(default_factory=dict)
    """The part of the facts about parameters and attributes that calls of other files tell."""
    returns: dict[tuple[str, int | str | None], set[str]] = field(default_factory=dict)
    gives: dict[tuple[Path, str, int | str | None], set[str]] = field(default_factory=dict)
    looked_at: list[Module] = field(default_factory=list)
    known: dict[str, Definition] = field(default_factory=dict)
    holders: set[str] = field(default_factory=set)
    """The classes whose objects hold models, by their keys."""
    types_from: set[Path] = field(default_factory=set)
    """The files that set state dict types, or give models away in contexts that do."""
    methods: set[str] = field(default_factory=set)
    _names: set[str] = field(default_factory=set)

    def run(self) -> None:
        """Go through the modules that FSDP1's models are known to reach, until nothing new is found."""
        self._look_at(path for path, text in self.project.texts.items() if catalog.FSDP in text)
        for _ in range(_MAX_PASSES):
            before = self._size()
            for module in tuple(self.looked_at):
                self._module(module)
            self._look_at(self.project.holding(self._makers() - self._names))
            self._names |= self._makers()
            # By imports alone: a function called `train` returns a Trainer in many projects.
            self._look_at(self.project.importing(self._givers() - self._names))
            if self._size() == before:
                break

    def _size(self) -> int:
        tables: tuple[dict[object, set[str]], ...] = (self.facts, self.returns)  # type: ignore[assignment]
        return len(self.looked_at) + sum(len(found) for table in tables for found in table.values())

    def _look_at(self, paths: Iterable[Path]) -> None:
        seen = {module.path for module in self.looked_at}
        for path in paths:
            module = self.project.module(path) if path not in seen else None
            if module is not None:
                self.looked_at.append(module)

    def _makers(self) -> set[str]:
        """Return what the functions that give models, and the classes that hold them, are called."""
        gives = {key.rpartition(":")[2] for (key, _), kinds in self.returns.items() if _is_about(kinds)}
        holds = {
            key.rpartition(":")[2]
            for (key, text), kinds in self.facts.items()
            if text.startswith("self.") and _is_about(kinds)
        }
        return {name.split(".")[-1] for name in gives | holds} - {"", "__init__", "main", "forward"}

    def _givers(self) -> set[str]:
        """Return what the functions that give objects which hold models are called."""
        held = {key for (key, _), kinds in self.returns.items() if self._is_about(kinds)}
        return {key.rpartition(":")[2].split(".")[-1] for key in held} - {"", "__init__", "main", "forward"}

    def _module(self, module: Module) -> None:
        self._body(module.tree.body, Place(module, ""))

    def _body(self, body: Iterable[ast.stmt], place: Place) -> None:
        for node in body:
            here = replace(place, line=node.lineno)
            if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
                name = f"{place.scope}.{node.name}" if place.scope else node.name
                self._body(node.body, Place(place.module, name))
                continue
            if isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
                here = replace(here, loops=(*place.loops, node))
            if isinstance(node, ast.With) and any("state_dict_type" in ast.dump(i) for i in node.items):
                here = replace(here, is_typed=True)
            self._statement(node, here)
            for inner in ("body", "orelse", "finalbody"):
                self._body(getattr(node, inner, ()), here)
            for handler in getattr(node, "handlers", ()):
                self._body(handler.body, here)

    def _statement(self, node: ast.stmt, place: Place) -> None:
        for call in calls_of(node):
            self._call(call, place)
        if isinstance(node, (ast.For, ast.AsyncFor)):
            self._loop(node, place)
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._assign(target, node.value, place, None)
            for definition in self.called(node.value, place):
                if definition.module is not place.module:
                    self._note_gives(node.value, place, definition)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._assign(node.target, node.value, place, None)
        elif isinstance(node, ast.Return) and node.value is not None and place.scope:
            self._return(node.value, place)

    def _assign(self, target: ast.expr, value: ast.expr, place: Place, index: int | None) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            for number, element in enumerate(target.elts):
                self._assign(element, value, place, number if index is None else index)
            return
        kinds = self.kinds(value, place, index)
        if isinstance(target, ast.Subscript):
            # `models[name] = FSDP(net)`
            target, kinds = target.value, {f"{_EACH}{kind}" for kind in kinds if kind in _MODELS}
        text = dotted(target)
        for name, held in tuple(self._named_items(value, place)) if text and index is None else ():
            self.facts.setdefault(self._key(f"{text}[{name!r}]", place), set()).update(held)
        if text is None or not kinds:
            return
        self._set_on_object(text, kinds, place)
        key = self._key(text, place)
        self.facts.setdefault(key, set()).update(kinds)
        if text.startswith(("self.", "cls.")) and self._is_about(kinds):
            self.holders.add(key[0])
        mark = (place.line, place.loops)
        if "fsdp" in kinds and mark not in self.made.setdefault(
            (f"{place.module.path}:{place.scope}", text), []
        ):
            self.made[f"{place.module.path}:{place.scope}", text].append(mark)

    def _set_on_object(self, text: str, kinds: set[str], place: Place) -> None:
        """Note what is set on an object from outside of its class: ``trainer.model = FSDP(net)``."""
        start, _, last = text.rpartition(".")
        if not start or start in {"self", "cls"} or not self._is_about(kinds):
            return
        for kind in tuple(self._lookup(start, place)):
            owner = self.known.get(kind.removeprefix(_IS)) if kind.startswith(_IS) else None
            if owner is not None:
                fact = owner.key, f"self.{last}"
                self.facts.setdefault(fact, set()).update(kinds)
                self.from_others.setdefault(fact, set()).update(kinds)
                self.holders.add(owner.key)
                self._look_at([owner.module.path])

    def _loop(self, node: ast.For | ast.AsyncFor, place: Place) -> None:
        """Note what a loop goes through: ``for model in models.values()``."""
        text = dotted(node.target.elts[-1] if isinstance(node.target, ast.Tuple) else node.target)
        over = node.iter
        if isinstance(over, ast.Call) and isinstance(over.func, ast.Attribute) and not over.args:
            over = over.func.value if over.func.attr in {"items", "values"} else over
        each = {kind.removeprefix(_EACH) for kind in self.kinds(over, place) if kind.startswith(_EACH)}
        if text is not None and each:
            fact = self._key(text, place)
            self.facts.setdefault(fact, set()).update(each)
            self.from_others.setdefault(fact, set()).update(each)

    def _key(self, text: str, place: Place) -> Fact:
        if text.startswith(("self.", "cls.")):
            owner = self.project.class_of(place)
            if owner is not None:
                return owner.key, f"self.{text.partition('.')[2]}"
        return f"{place.module.path}:{place.scope}", text

    def _return(self, value: ast.expr, place: Place) -> None:
        key = f"{place.module.path}:{place.scope}"
        indices: tuple[int | None, ...] = (None,)
        if isinstance(value, ast.Tuple):
            indices = tuple(range(len(value.elts)))
        elif isinstance(value, ast.Call):
            # What another function returns may be a tuple, whose size is not known yet.
            indices = (None, *range(_MAX_TUPLE))
        each: dict[int | str | None, set[str]] = {index: self.kinds(value, place, index) for index in indices}
        for part, kinds in (*each.items(), *self._named_items(value, place)):
            if kinds:
                self.returns.setdefault((key, part), set()).update(kinds)

    def _named_items(self, node: ast.expr, place: Place) -> Iterator[tuple[str, set[str]]]:
        """Yield what is known of a dict's items, by their names: of one that stands here, or has a name."""
        yield from ((name, self.kinds(item, place)) for name, item in named_items(node))
        text = dotted(node)
        scope, start = self._key(f"{text}['", place) if text is not None else ("", "")
        for (key, each), kinds in tuple(self.facts.items()) if start else ():
            if key == scope and each.startswith(start):
                yield each[len(start) : -2], kinds
        for definition in self.called(node.func, place) if isinstance(node, ast.Call) else ():
            for (key, part), kinds in tuple(self.returns.items()):
                if key == definition.key and isinstance(part, str):
                    yield part, kinds

    def _call(self, call: ast.Call, place: Place) -> None:
        """Note what a call gives to the parameters of what it calls."""
        given = [self.kinds(arg, place) for arg in call.args]
        named = {each.arg: self.kinds(each.value, place) for each in call.keywords if each.arg}
        is_about = any(map(self._is_about, (*given, *named.values())))
        self.methods |= asked_for(call.func, self.methods, lambda node: self.kinds(node, place))
        for definition in self.called(call.func, place):
            if definition.module is not place.module:
                self._note_gives(call.func, place, definition)
            if not is_about:
                continue
            self._look_at([definition.module.path])
            if place.is_typed and definition.module is not place.module:
                self.types_from.add(place.module.path)
            made = (
                self.project.method(definition, "__init__")
                if isinstance(definition.node, ast.ClassDef)
                else None
            )
            for name, kinds in bound(made or definition, call, given, named):
                if not kinds:
                    continue
                if made is None and isinstance(definition.node, ast.ClassDef) and self._is_about(kinds):
                    self.holders.add(definition.key)  # a dataclass
                fact = self._parameter(made or definition, name)
                self.facts.setdefault(fact, set()).update(kinds)
                # What a file shows by itself counts there by its place, above or below the wrapping; what it
                # is told of counts everywhere.
                if not is_seen_alone(definition, call, place):
                    self.from_others.setdefault(fact, set()).update(kinds)

    def _is_about(self, kinds: set[str]) -> bool:
        """Tell whether FSDP1's models, or objects that hold some, are among what an expression may be."""
        if _is_about(kinds):
            return True
        owners = (self.known.get(kind.removeprefix(_IS)) for kind in kinds if kind.startswith(_IS))
        return any(owner is not None and self._holds(owner) for owner in owners)

    def _holds(self, owner: Definition, depth: int = 0) -> bool:
        """Tell whether objects of a class, or of one that it derives from, hold models."""
        if owner.key in self.holders:
            return True
        return depth < 4 and any(self._holds(base, depth + 1) for base in self.project.bases(owner))

    def _parameter(self, definition: Definition, name: str) -> Fact:
        """Return what a parameter is called: of a class without a constructor of its own, the attribute."""
        if isinstance(definition.node, ast.ClassDef):
            return definition.key, f"self.{name}"
        return definition.key, name

    def _note_gives(self, func: ast.expr, place: Place, definition: Definition) -> None:
        """Note what calling a thing of another file gives, by the name that it has here."""
        text = dotted(func)
        if text is None:
            return
        root, _, rest = text.partition(".")
        if root in {"self", "cls"}:
            owner = self.project.class_of(place)
            written = f"{owner.name}:{text}" if owner is not None else ""
        elif root in place.module.imports:
            written = self.project.qualified(text, place)
        else:
            written = text if not rest else ""  # by `from module import *`
        names = (part for key, part in self.returns if key == definition.key and isinstance(part, str))
        for index in (None, *range(_MAX_TUPLE), *names):
            found = self.returns.get((definition.key, index), set()) & _TOLD
            if (
                index is None
                and isinstance(definition.node, ast.ClassDef)
                and self.project.is_subclass(definition)
            ):
                found = found | {"fsdp"}
            if found and written:
                self.gives.setdefault((place.module.path, written, index), set()).update(found)

    def kinds(self, node: ast.expr, place: Place, index: int | None = None) -> set[str]:
        """Return what an expression, or the element of its tuple, may be."""
        if isinstance(node, ast.Call):
            return self._call_kinds(node, place, index)
        if isinstance(node, ast.IfExp):
            return either([(each, self.kinds(each, place, index)) for each in (node.body, node.orelse)])
        if isinstance(node, ast.NamedExpr):
            return self.kinds(node.value, place, index)
        if isinstance(node, (ast.Tuple, ast.List)):
            is_there = index is not None and index < len(node.elts)
            return self.kinds(node.elts[index], place) if is_there and index is not None else set()
        if isinstance(node, ast.Subscript) and index is None:
            held = self.kinds(node.value, place)
            text = dotted(node.value)
            name = node.slice.value if isinstance(node.slice, ast.Constant) else None
            by_name = (
                self._lookup(f"{text}[{name!r}]", place) if text is not None and name is not None else set()
            )
            return by_name | {kind.removeprefix(_EACH) for kind in held if kind.startswith(_EACH)}
        if index is not None or not isinstance(node, (ast.Name, ast.Attribute)):
            return set()
        text = dotted(node)
        return set() if text is None else self._text_kinds(text, node, place)

    def _text_kinds(self, text: str, node: ast.expr, place: Place) -> set[str]:
        found = set(self._lookup(text, place))
        if self._is_before(text, node, place):
            found.discard("fsdp")
        start, _, last = text.rpartition(".")
        if start and start not in {"self", "cls"}:
            for kind in self._lookup(start, place):
                if kind.startswith(_IS):
                    found |= self._of_class(self.known.get(kind.removeprefix(_IS)), f"self.{last}")
        known = self.project.qualified(text, place)
        found |= {f"{_MAKES}{kind}" for kind in made_by(known)}
        for definition in self.called(node, place):
            returned = self.returns.get((definition.key, None), set())
            found |= {f"{_MAKES}{kind}" for kind in returned if kind in _MODELS | {f"{_EACH}fsdp"}}
            if isinstance(definition.node, ast.ClassDef) and self.project.is_subclass(definition):
                found.add(f"{_MAKES}fsdp")
        return found

    def _is_before(self, text: str, node: ast.expr, place: Place) -> bool:
        """Tell whether a name is used above the lines of its function that make it a model."""
        scope = f"{place.module.path}:{place.scope}"
        made = self.made.get((scope, text))
        if not made or self.from_others.get((scope, text)):
            return False
        around = set(map(id, place.loops))
        return not any(line < node.lineno or around & set(map(id, loops)) for line, loops in made)

    def _lookup(self, text: str, place: Place) -> set[str]:
        if text.startswith(("self.", "cls.")):
            owner = self.project.class_of(place)
            return self._of_class(owner, f"self.{text.partition('.')[2]}")
        scope = place.scope
        while True:
            found = self.facts.get((f"{place.module.path}:{scope}", text))
            if found:
                return found
            if not scope:
                return set()
            scope = scope.rpartition(".")[0]

    def _of_class(self, owner: Definition | None, text: str, depth: int = 0) -> set[str]:
        """Return what an attribute of a class, or of one that it derives from, may be."""
        if owner is None or depth > 4:
            return set()
        found = set(self.facts.get((owner.key, text), ()))
        for base in self.project.bases(owner):
            found |= self._of_class(base, text, depth + 1)
        return found

    def _call_kinds(self, call: ast.Call, place: Place, index: int | None) -> set[str]:
        text = dotted(call.func)
        known = self.project.qualified(text, place) if text is not None else ""
        if known in {"functools.partial", "partial"} and call.args and index is None:
            return {kind for kind in self.kinds(call.args[0], place) if kind.startswith(_MAKES)}
        if known in AROUND_MODEL and len(call.args) > AROUND_MODEL[known]:
            return self.kinds(call.args[AROUND_MODEL[known]], place)
        found: set[str] = set()
        for definition in self.called(call.func, place):
            if isinstance(definition.node, ast.ClassDef):
                self.known[definition.key] = definition
                # A subclass of FSDP1's is no object that holds a model: a call of it makes one.
                if index is None and not self.project.is_subclass(definition):
                    found.add(f"{_IS}{definition.key}")
            found |= self.returns.get((definition.key, index), set())
        if index is None:
            made = (kind for kind in self.kinds(call.func, place) if kind.startswith(_MAKES))
            found |= {kind.removeprefix(_MAKES) for kind in made}
        if isinstance(call.func, ast.Attribute) and call.func.attr in SAME_MODEL:
            found |= self.kinds(call.func.value, place)
        if isinstance(call.func, ast.Attribute) and call.func.attr in PARAMETERS:
            found |= {"params"} if "fsdp" in self.kinds(call.func.value, place) else set()
        elif text in SAME_PARAMETERS:
            found |= {kind for arg in call.args for kind in self.kinds(arg, place) if kind == "params"}
        return found

    def called(self, func: ast.expr, place: Place) -> Iterator[Definition]:
        """Yield the functions and classes of the project that an expression names."""
        text = dotted(func)
        if text is None:
            return
        root, _, rest = text.partition(".")
        if root == "super()":
            owner = self.project.class_of(place)
            above = (
                (self.project.method(base, rest) for base in self.project.bases(owner))
                if owner is not None
                else ()
            )
            yield from (each for each in above if each is not None)
            return
        if root in {"self", "cls"} and rest:
            own = self.project.own(rest, place)
            if own is not None or "." not in rest:
                yield from (each for each in (own,) if each is not None)
                return
        definition = self.project.named(text, place)
        if definition is not None:
            yield definition
            return
        start, _, last = text.rpartition(".")
        for kind in self._lookup(start, place) if start else ():
            if kind.startswith(_IS):
                method = self.project.method(self.known.get(kind.removeprefix(_IS)), last)
                yield from (each for each in (method,) if each is not None)

    def links(self) -> dict[Path, Links]:
        """Return what each file should be told of by the others."""
        gives: dict[Path, dict[tuple[str, int | str | None], frozenset[str]]] = {}
        given: dict[Path, dict[tuple[str, str], frozenset[str]]] = {}
        for (path, written, index), kinds in self.gives.items():
            gives.setdefault(path, {})[written, index] = frozenset(kinds)
        for (key, text), kinds in self.from_others.items():
            path, name = self.project.split(key)
            if kinds & _TOLD:
                given.setdefault(path, {})[name, text] = frozenset(kinds & _TOLD)
        for module in self.looked_at:
            for (name, text), kinds in self._inherited(module):
                given.setdefault(module.path, {})[name, text] = frozenset(kinds)
        setters = {path for path, text in self.project.texts.items() if "set_state_dict_type" in text}
        types = setters | self.types_from
        names, taken = self.handed_on.names, self.handed_on.taken
        owners = {key.rpartition(":")[0] for (key, _), kinds in self.facts.items() if _is_about(kinds)}
        optimizers = made_beside_models(self.looked_at, owners, self.called)
        methods = methods_by_file(self.project, self.methods)
        paths = {m.path for m in self.looked_at}.union(gives, given, names, taken, optimizers, methods)
        return {
            p: Links(
                *(gives.get(p, {}), given.get(p, {}), names.get(p, {})),
                *(frozenset(taken.get(p, ())), frozenset(optimizers.get(p, ()))),
                methods=methods.get(p, frozenset()),
                types_elsewhere=bool(types - {p}),
            )
            for p in paths
        }

    def _inherited(self, module: Module) -> Iterator[tuple[Fact, set[str]]]:
        """Yield the attributes that classes have by classes of other files, or objects have at all."""
        scopes = [("", module.tree), *((each.name, each.node) for each in module.definitions.values())]
        for name, scope in scopes:
            place, key = Place(module, name, line=10**9), f"{module.path}:{name}"
            is_class = isinstance(scope, ast.ClassDef)
            texts = {dotted(each) or "" for each in ast.walk(scope) if isinstance(each, ast.Attribute)}
            for text in texts - {""}:
                is_own = text.startswith("self.")
                if is_class is not is_own or not (is_own or self._lookup(text[: text.rindex(".")], place)):
                    continue
                own = self.facts.get((key, text), set())
                found = self._text_kinds(text, ast.parse(text, mode="eval").body, place) - own
                each_of = {kind.removeprefix(_EACH) for kind in found if kind.startswith(_EACH)}
                for label, kinds in ((text, found & _TOLD), (f"{text}[]", each_of & _MODELS)):
                    if kinds:
                        yield (name, label), kinds


def _is_about(kinds: set[str]) -> bool:
    """Tell whether FSDP1's models are among what an expression may be."""
    return bool(kinds & {"fsdp", "params", f"{_MAKES}fsdp", f"{_EACH}fsdp"})
