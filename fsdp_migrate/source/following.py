"""FSDP1 models followed over the files of a project: who makes them, and who is given them.

A file is looked at by itself in :mod:`fsdp_migrate.source.python.models`. What that cannot see is said to it
here: that ``build_model`` of another file returns an FSDP1 model, and that ``train(model)`` is given one.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from fsdp_migrate.source import catalog
from fsdp_migrate.source.asked_methods import asked_for, methods_by_file, of_the_whole
from fsdp_migrate.source.found_units import is_found
from fsdp_migrate.source.framework_files import framework_models, with_frameworks
from fsdp_migrate.source.handed_on import HandedOn
from fsdp_migrate.source.held_callables import called_parameter, given_callables
from fsdp_migrate.source.lightning_files import with_lightning
from fsdp_migrate.source.made_elsewhere import with_texts
from fsdp_migrate.source.optimizer_classes import (
    made_beside_models,
    makers_beside,
    methods_by_file as optimizer_methods,
)
from fsdp_migrate.source.own_wrapping import sharding_parts
from fsdp_migrate.source.project import (
    Definition,
    Module,
    Place,
    Project,
    bound,
    dotted,
    is_seen_alone,
)
from fsdp_migrate.source.project_arguments import given_to, is_made_there
from fsdp_migrate.source.project_fields import fields_of
from fsdp_migrate.source.project_kinds import (
    ANY,
    BARE,
    Fact,
    ProjectKinds,
    is_about,
    makes_attribute,
    node_of,
    step_of,
    targets_of,
)
from fsdp_migrate.source.project_scopes import scopes_of
from fsdp_migrate.source.project_switches import Mark, chosen
from fsdp_migrate.source.python.held import EACH, ITEM, attribute, held, inside_of, item, put, taken
from fsdp_migrate.source.reach import with_reach
from fsdp_migrate.source.wrapper_classes import wrapper_classes


if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterable, Iterator
    from pathlib import Path
    from typing import TypeVar

    from fsdp_migrate.source.project_kinds import Key
    from fsdp_migrate.source.project_scopes import Scope, Statement
    from fsdp_migrate.source.python.links import Fields, Links

    _Key = TypeVar("_Key", str, Fact)


_MAX_PASSES = 30
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_ADDS = {"add": 0, "append": 0, "appendleft": 0, "insert": 1}


def links_of(paths: Iterable[Path], around: Iterable[str | os.PathLike[str]] = ()) -> dict[Path, Links]:
    """Return what each file should be told of by the others; those of which nothing is known are left out.

    ``around``: the files and folders that were given, where configs and shell scripts may be.
    """
    project = Project.read(path for path in paths if path.suffix == ".py")
    links: dict[Path, Links] = {}
    frameworks = framework_models(project, around)
    if frameworks.files or any(catalog.FSDP in text for text in project.texts.values()):
        following = _Following(project, handed_on=HandedOn(project), frameworks=frameworks)
        following.run()
        links = following.links()
    links = with_frameworks(project.texts, frameworks, links)
    links = with_texts(project.texts, with_lightning(project, links))
    return with_reach(project, links, frameworks.files)


@dataclass(eq=False)
class _Following(ProjectKinds):
    handed_on: HandedOn = field(kw_only=True)
    gives: dict[tuple[Path, str], set[str]] = field(default_factory=dict)
    fields_told: dict[Path, dict[str, Fields]] = field(default_factory=dict)
    looked_at: list[Module] = field(default_factory=list)
    holders: set[str] = field(default_factory=set)
    """The classes whose objects hold models, by their keys."""
    types_from: set[Path] = field(default_factory=set)
    """The files that set state dict types, or give models away in contexts that do."""
    methods: set[str] = field(default_factory=set)
    _names: set[str] = field(default_factory=set)
    _scopes: dict[Module, list[Scope]] = field(default_factory=dict, repr=False)
    _callables: dict[Fact, list[tuple[ast.expr, Place]]] = field(default_factory=dict, repr=False)
    """What parameters that are called are given, by their function or class and their name."""
    _news: set[Scope] = field(default_factory=set, repr=False)
    """The scopes to go through: they are new, or asked for something of which more was found since."""

    def run(self) -> None:
        """Go through the modules that FSDP1's models are known to reach, until nothing new is found."""
        self._look_at(path for path, text in self.project.texts.items() if catalog.FSDP in text)
        self._look_at(self.frameworks.files)
        for key, name, kinds in self.frameworks.given():
            self._add((key, name), kinds, from_others=True)
        for _ in range(_MAX_PASSES):
            before = len(self.looked_at)
            self.seen.clear()
            for module in tuple(self.looked_at):
                self._module(module)
            self._look_at(self.project.holding(self._makers() - self._names))
            self._names |= self._makers()
            # By imports alone: a function called `train` returns a Trainer in many projects.
            self._look_at(self.project.importing(self._givers() - self._names))
            if len(self.looked_at) == before and not self._news:
                break

    def _found_more(self, key: Key) -> None:
        """Note that more is known of something: the scopes that asked for it are gone through again."""
        self._news |= self.askers.get(key, set())

    def _update(self, table: dict[_Key, set[str]], key: _Key, kinds: Collection[str]) -> None:
        found = table.setdefault(key, set())
        if not found.issuperset(kinds):
            found.update(kinds)
            self._found_more(key)

    def _note_holder(self, key: str) -> None:
        if key not in self.holders:
            self.holders.add(key)
            self._found_more(key)

    def _look_at(self, paths: Iterable[Path]) -> None:
        seen = {module.path for module in self.looked_at}
        for path in paths:
            module = self.project.module(path) if path not in seen else None
            if module is not None:
                self.looked_at.append(module)

    def _makers(self) -> set[str]:
        """Return what the functions that give models, and the classes that hold them, are called."""
        gives = {key.rpartition(":")[2] for key, kinds in self.returns.items() if is_about(kinds)}
        holds = {
            key.rpartition(":")[2]
            for (key, text), kinds in self.facts.items()
            if text.startswith("self.") and is_about(kinds)
        }
        return {name.split(".")[-1] for name in gives | holds} - {"", "__init__", "main", "forward"}

    def _givers(self) -> set[str]:
        """Return what the functions that give objects which hold models are called."""
        held = {key for key, kinds in self.returns.items() if self._is_about(kinds)}
        return {key.rpartition(":")[2].split(".")[-1] for key in held} - {"", "__init__", "main", "forward"}

    def _module(self, module: Module) -> None:
        if module not in self._scopes:
            self._scopes[module] = scopes_of(module)
            self._news.update(self._scopes[module])
        for scope in self._scopes[module]:
            if scope not in self._news:
                continue
            self._news.discard(scope)
            self.asker = scope
            for function, place in scope.functions:
                self._parameters(function, place)
            for statement in scope.statements:
                self._statement(statement)

    def _statement(self, statement: Statement) -> None:
        node, place = statement.node, statement.place
        for call in statement.calls:
            self._call(call, place)
            self._adds(call, place)
        if isinstance(node, (ast.For, ast.AsyncFor)):
            self._loop(node, place)
        if isinstance(node, ast.Assign):
            kinds = self.kinds(node.value, place)
            here = replace(place, asked=(*place.asked, *chosen(node.value)))
            for target in node.targets:
                self._assign(target, kinds, here)
            for definition in self.called(node.value, place):
                if definition.module is not place.module:
                    self._note_gives(node.value, place, definition)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._assign(node.target, self.kinds(node.value, place), place)
        elif isinstance(node, ast.AugAssign):
            self._assign(node.target, held(self.kinds(node.value, place)), place)
        elif isinstance(node, ast.Return) and node.value is not None and place.scope:
            self._return(node.value, place)

    def _assign(self, target: ast.expr, kinds: set[str], place: Place) -> None:
        for part, held_here in targets_of(target, kinds) if kinds else ():
            if isinstance(part, ast.Subscript):
                # `models[name] = FSDP(net)`
                step = step_of(part)
                inside = put(ITEM if step.isdigit() else step, held_here)
                self._assign_name(dotted(part.value), inside, place)
            else:
                self._assign_name(dotted(part), held_here, place)

    def _assign_name(self, text: str | None, kinds: set[str], place: Place) -> None:
        if text is None or not kinds:
            return
        self._set_on_object(text, kinds, place)
        key = self._key(text, place)
        self._add(key, kinds)
        if text.startswith(("self.", "cls.")) and self._is_about(kinds):
            self._note_holder(key[0])
            self._note_above(self.project.class_of(place), key[1], kinds)
        mark, here = Mark(place.line, place.loops, place.asked), (f"{place.module.path}:{place.scope}", text)
        if "fsdp" in kinds and mark not in self.made.setdefault(here, []):
            self.made[here].append(mark)
            self._found_more(here)

    def _note_above(self, owner: Definition | None, text: str, kinds: set[str], depth: int = 0) -> None:
        """Note what an attribute of a class may be in the methods of those that it derives from.

        Another class that derives from them may hold a plain model there.
        """
        for base in self.project.bases(owner) if owner is not None and "fsdp" in kinds and depth < 4 else ():
            if not makes_attribute(base, text):
                own = self.project.overridden(base, owner) if owner is not None else set()
                self.not_run[base.key] = self.not_run.get(base.key, own) & own
                self._update(self.below, (base.key, text), {"fsdp", "other"})
                self._look_at([base.module.path])
                self._note_above(base, text, kinds, depth + 1)

    def _add(self, fact: Fact, kinds: Collection[str], *, from_others: bool = False) -> None:
        if kinds:
            self._update(self.facts, fact, kinds)
            if from_others:
                self._update(self.from_others, fact, kinds)

    def _set_on_object(self, text: str, kinds: set[str], place: Place) -> None:
        """Note what is set on an object from outside of its class: ``trainer.model = FSDP(net)``."""
        start, _, last = text.rpartition(".")
        if not start or start in {"self", "cls"} or not self._is_about(kinds):
            return
        if not last.startswith("_"):
            self._add(self._key(start, place), put(attribute(last), kinds))
        is_own = is_made_there(self.project, start, place)
        for owner, _ in tuple(self.objects_in(self.lookup(start, place))):
            fact = (owner.key, f"self.{last}")
            was_own = self.set_on_own.get(fact)
            if was_own is None or (was_own and not is_own):
                self.set_on_own[fact] = is_own
                self._found_more(fact)
            self._add(fact, kinds, from_others=True)
            self._note_holder(owner.key)
            self._look_at([owner.module.path])

    def _loop(self, node: ast.For | ast.AsyncFor, place: Place) -> None:
        """Note what a loop goes through: ``for model in models.values()``."""
        kinds = taken(EACH, self.kinds(node.iter, place))
        over = dotted(node.iter)
        is_of_names = (
            over is not None
            and isinstance(node.target, ast.Name)
            and any(
                isinstance(each, ast.Subscript)
                and dotted(each.value) == over
                and dotted(each.slice) == node.target.id
                for each in ast.walk(node)
            )
        )
        for target, each in targets_of(node.target, kinds) if kinds and not is_of_names else ():
            text = dotted(target)
            if text is not None:
                self._add(self._key(text, place), each)

    def _key(self, text: str, place: Place) -> Fact:
        if text.startswith(("self.", "cls.")):
            owner = self.project.class_of(place)
            if owner is not None:
                return owner.key, f"self.{text.partition('.')[2]}"
        return f"{place.module.path}:{place.scope}", text

    def _return(self, value: ast.expr, place: Place) -> None:
        scope = f"{place.module.path}:{place.scope}"
        node = self.project.node(place.module, place.scope)
        names = [arg.arg for arg in node.args.args] if isinstance(node, _FUNCTIONS) else []
        for name in names:
            self.ask((scope, name))
        given = {kind for name in names for kind in self.facts.get((scope, name), ())}
        kinds = self.kinds(value, place) - inside_of(given)
        kinds |= {"fsdp", "other"} if is_found(self.project, node, value, place) else set()
        if kinds:
            self._update(self.returns, f"{place.module.path}:{place.scope}", kinds)

    def _adds(self, call: ast.Call, place: Place) -> None:
        """Note what a call puts into a list or a dict: ``models.append(FSDP(net))``."""
        where = dotted(call.func.value) if isinstance(call.func, ast.Attribute) else None
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        if where is None:
            return
        kinds: set[str] = set()
        if name in _ADDS and len(call.args) == _ADDS[name] + 1:
            kinds = put(EACH, self.kinds(call.args[-1], place))
        elif name in {"extend", "update"}:
            kinds = held(self.kinds(call.args[0], place)) if call.args else set()
            for each in call.keywords:
                kinds |= put(item(each.arg), self.kinds(each.value, place)) if each.arg else set()
        self._add(self._key(where, place), kinds)

    def _parameters(self, node: ast.FunctionDef | ast.AsyncFunctionDef, place: Place) -> None:
        """Note the parameters that are objects of the project's classes, as their annotations say."""
        for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            text = dotted(arg.annotation) if arg.annotation is not None else None
            owner = self.project.named(text, place) if text is not None else None
            if owner is not None and isinstance(owner.node, ast.ClassDef):
                self.known[owner.key] = owner
                scope = f"{place.scope}.{node.name}" if place.scope else node.name
                self._add((f"{place.module.path}:{scope}", arg.arg), {f"{ANY}{owner.key}"}, from_others=True)

    def _call(self, call: ast.Call, place: Place) -> None:
        """Note what a call gives to the parameters of what it calls."""
        given, named = given_to(call, lambda node: self.kinds(node, place))
        is_about = any(map(self._is_about, (*given, *named.values())))
        self.methods |= asked_for(call.func, self.methods, lambda node: self.kinds(node, place), place.module)
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
            is_class = made is None and isinstance(definition.node, ast.ClassDef)
            order = fields_of(self.project, definition) if is_class else ((), False)
            if is_class and order[0] and definition.module is not place.module:
                written = self._written(call.func, place)
                self.fields_told.setdefault(place.module.path, {})[written] = order
            for name, kinds in bound(made or definition, call, given, named, order[0]):
                if not kinds:
                    continue
                if made is None and isinstance(definition.node, ast.ClassDef) and self._is_about(kinds):
                    self._note_holder(definition.key)  # a dataclass
                # What a file shows by itself counts there by its place, above or below the wrapping; what it
                # is told of counts everywhere.
                is_told = not is_seen_alone(definition, call, place)
                self._add(self._parameter(made or definition, name), kinds, from_others=is_told)
        if is_about and "fsdp" in set().union(*given) and not any(self.called(call.func, place)):
            self._call_held(call, place, given, named)

    def _call_held(
        self, call: ast.Call, place: Place, given: list[set[str]], named: dict[str, set[str]]
    ) -> None:
        """Note what a call gives to functions that were given away by their names, or as lambdas."""
        kept = called_parameter(self.project, call.func, place)
        if kept is None:
            return
        owner, name = kept
        if (owner.key, name) not in self._callables:
            self._callables[owner.key, name] = [*given_callables(self.project, self.called, owner, name)]
        for value, where in self._callables[owner.key, name]:
            if isinstance(value, ast.Lambda):
                names = dict(zip([arg.arg for arg in value.args.args], given, strict=False))
                inner = value.body
                if isinstance(inner, ast.Call):
                    here = [
                        names.get(arg.id, set()) if isinstance(arg, ast.Name) else set() for arg in inner.args
                    ]
                    self._give(inner.func, where, inner, here, {})
            else:
                self._give(value, where, call, given, named)

    def _give(
        self, func: ast.expr, where: Place, call: ast.Call, given: list[set[str]], named: dict[str, set[str]]
    ) -> None:
        for definition in self.called(func, where):
            is_class = isinstance(definition.node, ast.ClassDef)
            made = self.project.method(definition, "__init__") if is_class else definition
            for name, kinds in bound(made, call, given, named) if made is not None else ():
                if kinds and made is not None:
                    self._look_at([made.module.path])
                    self._add((made.key, name), kinds, from_others=True)

    def _is_about(self, kinds: set[str]) -> bool:
        """Tell whether FSDP1's models, or objects that hold some, are among what an expression may be."""
        return is_about(kinds) or any(self._holds(owner) for owner, _ in self.objects_in(kinds))

    def _holds(self, owner: Definition, depth: int = 0) -> bool:
        """Tell whether objects of a class, or of one that it derives from, hold models."""
        self.ask(owner.key)
        if owner.key in self.holders:
            return True
        return depth < 4 and any(self._holds(base, depth + 1) for base in self.project.bases(owner))

    def _parameter(self, definition: Definition, name: str) -> Fact:
        """Return what a parameter is called: of a class without a constructor of its own, the attribute."""
        if isinstance(definition.node, ast.ClassDef):
            return definition.key, f"self.{name}"
        return definition.key, name

    def _written(self, func: ast.expr, place: Place) -> str:
        """Return how a file writes the name of a thing of another file, its imports taken in."""
        text = dotted(func)
        if text is None:
            return ""
        root, _, rest = text.partition(".")
        if root in {"self", "cls"}:
            owner = self.project.class_of(place)
            return f"{owner.name}:{text}" if owner is not None else ""
        if root in place.module.imports:
            return self.project.qualified(text, place)
        return text if not rest else ""  # by `from module import *`

    def _note_gives(self, func: ast.expr, place: Place, definition: Definition) -> None:
        """Note what calling a thing of another file gives, by the name that it has here."""
        written = self._written(func, place)
        found = set(self.returned(definition))
        if isinstance(definition.node, ast.ClassDef):
            found.add("fsdp" if self.project.is_subclass(definition) else f"{BARE}{definition.key}")
        if found and written:
            self.gives.setdefault((place.module.path, written), set()).update(found)

    def links(self) -> dict[Path, Links]:
        """Return what each file should be told of by the others."""
        self.seen.clear()
        gives: dict[Path, dict[str, frozenset[str]]] = {}
        given: dict[Path, dict[tuple[str, str], frozenset[str]]] = {}
        for (path, written), kinds in self.gives.items():
            told = self.told(kinds)
            if told:
                gives.setdefault(path, {})[written] = told
        for (key, text), kinds in self.from_others.items():
            path, name = self.project.split(key)
            told = self.told(kinds)
            if told:
                given.setdefault(path, {})[name, text] = told
        for module in self.looked_at:
            for (name, text), kinds in self._inherited(module):
                given.setdefault(module.path, {})[name, text] = frozenset(kinds)
        setters = {path for path, text in self.project.texts.items() if "set_state_dict_type" in text}
        types = setters | self.types_from
        whole_project = of_the_whole(self.project)
        names, taken = self.handed_on.names, self.handed_on.taken
        owners = {key.rpartition(":")[0] for (key, _), kinds in self.facts.items() if is_about(kinds)}
        beside = makers_beside(self.looked_at, {key for key, _ in self.made}, self.called)
        self._look_at(beside)
        optimizers = made_beside_models(self.looked_at, owners.union(map(str, beside)), self.called)
        methods = methods_by_file(self.project, self.methods)
        makers = optimizer_methods(self.project, self.looked_at, self.models_of)
        paths = {m.path for m in self.looked_at}.union(gives, given, names, taken, methods, makers)
        parts = sharding_parts(self, self.looked_at)
        paths.update(optimizers.classes, optimizers.names, parts)
        wrappers = {module.path: wrapper_classes(self.project, module) for module in self.looked_at}
        return {
            p: replace(
                whole_project,
                gives=gives.get(p, {}),
                is_given=given.get(p, {}),
                names=names.get(p, {}),
                taken=frozenset(taken.get(p, ())),
                optimizers=frozenset(optimizers.classes.get(p, ())),
                whole_optimizers=optimizers.of_wholes(p),
                methods=methods.get(p, frozenset()),
                wrappers=wrappers.get(p, frozenset()),
                own_optimizers=frozenset(optimizers.names.get(p, ())),
                optimizer_methods=makers.get(p, frozenset()),
                fields=self.fields_told.get(p, {}),
                shards_parts=parts.get(p, frozenset()),
                types_elsewhere=bool(types - {p}),
                not_run=frozenset(
                    name for key, names in self.not_run.items() if key.startswith(f"{p}:") for name in names
                ),
            )
            for p in paths
        }

    def _inherited(self, module: Module) -> Iterator[tuple[Fact, set[str]]]:
        """Yield the attributes that classes have by classes of other files, or objects have at all."""
        scopes = [("", module.tree), *((each.name, each.node) for each in module.definitions.values())]
        for name, scope in scopes:
            place, key = Place(module, name), f"{module.path}:{name}"
            is_class = isinstance(scope, ast.ClassDef)
            texts = {dotted(each) or "" for each in ast.walk(scope) if isinstance(each, ast.Attribute)}
            for text in texts - {""}:
                is_own = text.startswith("self.")
                if is_class is not is_own or not (is_own or self.lookup(text[: text.rindex(".")], place)):
                    continue
                own = self.facts.get((key, text), set())
                told = self.told(self.text_kinds(text, node_of(text), place) - own)
                if told:
                    yield (name, text), set(told)
