"""FSDP1 models followed over the files of a project: who makes them, and who is given them.

A file is looked at by itself in :mod:`fsdp_migrate.source.python.models`. What that cannot see is said to it
here: that ``build_model`` of another file returns an FSDP1 model, and that ``train(model)`` is given one.
"""

from __future__ import annotations

import ast
import functools
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from fsdp_migrate.errors import SourceError
from fsdp_migrate.source import catalog
from fsdp_migrate.source.always_wrapped import always_makes
from fsdp_migrate.source.asked_methods import asked_for, giving_self
from fsdp_migrate.source.beside_fsdps import with_classes_beside
from fsdp_migrate.source.chosen_optimizers import with_chosen_optimizers
from fsdp_migrate.source.compat_modules import with_compat_modules
from fsdp_migrate.source.foreign_packages import with_foreign_packages
from fsdp_migrate.source.forwards_of_units import with_unit_forwards
from fsdp_migrate.source.found_units import is_found
from fsdp_migrate.source.framework_files import framework_models, with_frameworks
from fsdp_migrate.source.fsdp2_givers import with_fsdp2_givers
from fsdp_migrate.source.given_contexts import lines_in_contexts
from fsdp_migrate.source.given_optimizers import with_given_optimizers
from fsdp_migrate.source.given_otherwise import GivenOtherwise
from fsdp_migrate.source.given_words import with_given_words
from fsdp_migrate.source.handed_functions import is_partial
from fsdp_migrate.source.handed_on import HandedOn
from fsdp_migrate.source.kept_in_families import with_kept_in_families
from fsdp_migrate.source.lightning_files import with_lightning
from fsdp_migrate.source.made_elsewhere import with_texts
from fsdp_migrate.source.nested_elsewhere import with_nesting
from fsdp_migrate.source.notebook_settings import NOTEBOOK, sources_in
from fsdp_migrate.source.patched_names import with_patched_names
from fsdp_migrate.source.prepared_elsewhere import with_prepared
from fsdp_migrate.source.project import Definition, Module, Place, Project, dotted, is_seen_alone
from fsdp_migrate.source.project_arguments import bound, given_to, is_by_class, rest_of, returned_to
from fsdp_migrate.source.project_callees import DERIVED
from fsdp_migrate.source.project_containers import pairs
from fsdp_migrate.source.project_fields import fields_of
from fsdp_migrate.source.project_kinds import ANY, BARE, Fact, is_about
from fsdp_migrate.source.project_names import given_by, is_one_of_many, is_property
from fsdp_migrate.source.project_scopes import scopes_of
from fsdp_migrate.source.project_switches import chosen, is_without_fsdp
from fsdp_migrate.source.python.held import (
    BY_ANY,
    COMPILED,
    EACH,
    UNSHARDED,
    has_model,
    held,
    inside_of,
    put,
    tensors,
    without_fsdp,
)
from fsdp_migrate.source.python.links import NOTHING
from fsdp_migrate.source.python.optimizers import has_groups
from fsdp_migrate.source.python.parsing import told
from fsdp_migrate.source.reach import with_reach
from fsdp_migrate.source.rewritten_before import texts_before
from fsdp_migrate.source.sharded_classes import with_sharded_classes
from fsdp_migrate.source.strategy_places import with_strategy_places
from fsdp_migrate.source.told import Told
from fsdp_migrate.source.unseen_names import with_unseen_names
from fsdp_migrate.source.variables_elsewhere import with_variables
from fsdp_migrate.source.wrapped_classes import with_wrapped_classes
from fsdp_migrate.source.wrapped_where import with_wrapping_places


if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterable, Iterator
    from pathlib import Path

    from fsdp_migrate.source.framework_models import FrameworkModels
    from fsdp_migrate.source.project import Function
    from fsdp_migrate.source.project_scopes import Scope, Statement
    from fsdp_migrate.source.python.links import Fields, Links


_MAX_PASSES = 30
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_ASKED = "asked:"
"""Before the name of a method: the scopes that ask whether a sharded model is asked for it."""
_WRAPS = re.compile(r"DataParallel\b|\bDistributedModel\b|\bdeepspeed\.\w+\(|\bbooster\.boost\(")


def links_of(paths: Iterable[Path], around: Iterable[str | os.PathLike[str]] = ()) -> dict[Path, Links]:
    """Return what each file should be told of by the others; those of which nothing is known are left out.

    ``around``: the files and folders that were given, where configs and shell scripts may be.
    """
    paths = [*paths]
    notebooks = _links_in(Project(_texts_in(path for path in paths if path.suffix == NOTEBOOK)), around)
    project = Project.read(path for path in paths if path.suffix == ".py")
    links = notebooks | _links_in(project, around)
    before = texts_before(project.texts)
    if not before:
        return links
    # What is left to be said of the other files is shown by what shards, which was FSDP1 before a rewrite.
    shown = _links_in(Project({**project.texts, **before}), around)
    return links | {path: each for path, each in shown.items() if path not in before}


def _texts_in(notebooks: Iterable[Path]) -> dict[Path, str]:
    return {path: text for notebook in notebooks for path, text in sources_in(notebook).items()}


def _links_in(project: Project, around: Iterable[str | os.PathLike[str]]) -> dict[Path, Links]:
    links: dict[Path, Links] = {}
    frameworks = framework_models(project, around)
    is_any = frameworks.files or any(catalog.FSDP in text for text in project.texts.values())
    following = _followed(project, frameworks, around) if is_any else None
    if following is not None:
        links = with_fsdp2_givers(project, Told(following).links())
    links = with_kept_in_families(project, links, following)
    links = with_chosen_optimizers(project, with_given_optimizers(project, links, frameworks))
    links = with_frameworks(project.texts, frameworks, links, around)
    links = with_given_words(project, links) if frameworks.trainers else links
    links = with_patched_names(project, with_texts(project.texts, with_lightning(project, links)))
    links = with_nesting(project, with_unseen_names(project, links, around))
    links = with_strategy_places(project, with_variables(project, with_compat_modules(project, links)))
    links = with_unit_forwards(project, frameworks.composer, with_classes_beside(project, links))
    links = with_foreign_packages(project, with_wrapping_places(project, links))
    links = with_sharded_classes(project.texts, with_wrapped_classes(project.texts, links), frameworks.files)
    links = with_reach(project, links, frameworks.files, around)
    links = with_prepared(project, links, lambda them: Told(_followed(them, frameworks, around)).links())
    failures = following.failures if following is not None else {}
    return links | {path: replace(links.get(path, NOTHING), failure=how) for path, how in failures.items()}


def _followed(
    project: Project, frameworks: FrameworkModels, around: Iterable[str | os.PathLike[str]]
) -> _Following:
    """Return what is known once all models are followed."""
    following = _Following(project, frameworks=frameworks, handed_on=HandedOn(project), around=around)
    following.run()
    return following


@dataclass(eq=False)
class _Following(GivenOtherwise):
    handed_on: HandedOn = field(kw_only=True)
    gives: dict[tuple[Path, str], set[str]] = field(default_factory=dict)
    fields_told: dict[Path, dict[str, Fields]] = field(default_factory=dict)
    types_from: set[Path] = field(default_factory=set)
    """The files that set state dict types, or give models away in contexts that do."""
    methods: set[str] = field(default_factory=set)
    failures: dict[Path, str] = field(default_factory=dict)
    """The files on which this package failed, and how."""
    gives_picked: set[str] = field(default_factory=set, repr=False)
    """The functions that give a model of what is picked when they run."""
    _asked: dict[str, set[str]] = field(default_factory=dict, repr=False)
    """What the models are that are asked for these."""
    _names: set[str] = field(default_factory=set)
    _registry_names: set[str] = field(default_factory=set, repr=False)
    """Registries whose users were looked for."""
    _subclasses: set[str] = field(default_factory=set, repr=False)
    """What the subclasses of FSDP1's class are called."""
    _of_modules: set[Fact] = field(default_factory=set, repr=False)
    """The names of files' top levels that are known to be models, and whose users were looked for."""
    _scopes: dict[Module, list[Scope]] = field(default_factory=dict, repr=False)

    @functools.cached_property
    def _typed(self) -> dict[Path, set[int]]:
        return lines_in_contexts(self.project)

    def _is_typed(self, place: Place) -> bool:
        """Tell whether a place is run in a state dict context, one that a function gives too."""
        return place.is_typed or place.start[0] in self._typed.get(place.module.path, ())

    def run(self) -> None:
        """Go through the modules that FSDP1's models are known to reach, until nothing new is found."""
        # Files of other wrappers, too: they may give their models to the same functions.
        self.look_at(path for path, text in self.project.texts.items() if _WRAPS.search(text))
        self.look_at(self.frameworks.files)
        for key, name, kinds in self.frameworks.given():
            self.add_unseen((key, name), set(kinds))
        for _ in range(_MAX_PASSES):
            before = len(self.looked_at)
            self.seen.clear()
            self.names_seen.clear()
            self.callables.clear()
            for module in tuple(self.looked_at):
                self._module(module)
            self.look_at(self.project.holding(self._makers() - self._names))
            self._names |= self._makers()
            # By imports alone: a function called `train` returns a Trainer in many projects.
            self.look_at(self.project.importing(self._givers() - self._names))
            self.look_at(self._importers())
            self.look_at(self._registering())
            if len(self.looked_at) == before and not self._news:
                break

    def _makers(self) -> set[str]:
        """Return what the functions that give models, and the classes that hold them, are called."""
        gives = {
            key.rpartition(":")[2] for key, kinds in self.returns.items() if is_about(kinds) or "ddp" in kinds
        }
        holds = {
            key.rpartition(":")[2]
            for (key, text), kinds in self.facts.items()
            if text.startswith("self.") and is_about(kinds)
        }
        wraps = {key.rpartition(":")[2] for key, _ in self.wholes} | self._subclasses
        wraps |= {key.rpartition(":")[2] for key in self.sets_on_given}
        return {name.split(".")[-1] for name in gives | holds | wraps} - {"", "__init__", "main", "forward"}

    def _importers(self) -> Iterator[Path]:
        """Yield the files that use models of other files' top levels: ``state.model``."""
        tops = {fact: kinds for fact, kinds in self.facts.items() if fact[0].endswith(":")}
        new = {fact for fact, kinds in tops.items() if self._is_about(kinds)}
        new -= self._of_modules
        self._of_modules |= new
        names = {text.split(".")[0] for _, text in new}
        files = {f"{self.project.split(key)[0].stem}.{text}" for key, text in new}
        yield from (*self.project.importing(names), *self.project.holding(files))

    def _registering(self) -> Iterator[Path]:
        """Yield the files that have, or use, the registries into which something that gives models is put."""
        gives = {key for key, kinds in self.returns.items() if is_about(kinds)}
        makes = gives | {key.rpartition(".")[0] for key in gives} | self.holders
        for path, definitions in self.registries.by_functions.items():
            yield from (path,) if any(each.key in makes for each in definitions) else ()
        held = self.registries.held.items()
        names = {
            (name or key.rpartition(":")[2]).split(".")[-1]
            for (key, name), definitions in held
            if any(each.key in makes or each.name in self._subclasses for each in definitions)
        }
        # `getattr(wrappers, cfg.kind)(net)`
        names |= {f"getattr({self.project.split(key)[0].stem}" for key in gives}
        yield from self.project.holding(names - self._registry_names)
        self._registry_names |= names

    def _givers(self) -> set[str]:
        """Return what functions are called that give models, or what holds some, and their classes."""
        held = [key.rpartition(":")[2] for key, kinds in self.returns.items() if self._is_about(kinds)]
        names = {part for name in held for part in name.split(".")[-2:]}
        names |= {self.project.split(key)[1].rpartition(".")[2] for key in self.holders}
        return names - {"", "__init__", "main", "forward"}

    def _module(self, module: Module) -> None:
        if module not in self._scopes:
            self._scopes[module] = scopes_of(module)
            self._news.update(self._scopes[module])
            self._note_derived(module)
            for fact in self.registries.note(module):
                self._found_more(fact)
            classes = (each for each in module.definitions.values() if isinstance(each.node, ast.ClassDef))
            self._subclasses |= {each.name for each in classes if self.project.is_subclass(each)}
        for scope in self._scopes[module]:
            if scope not in self._news:
                continue
            self._news.discard(scope)
            try:
                with told(str(module.path)):
                    self._scope(scope)
            except SourceError as error:
                self.failures.setdefault(module.path, str(error))

    def _scope(self, scope: Scope) -> None:
        self.asker = scope
        for function, place in scope.functions:
            self.note_parameters(function, place)
            self._note_decorated(function, place)
        for statement in scope.statements:
            self._statement(statement)

    def _note_derived(self, module: Module) -> None:
        """Note the classes that a module derives from others."""
        below: set[str] = set()
        for definition in module.definitions.values():
            for base in self.project.bases(definition) if isinstance(definition.node, ast.ClassDef) else ():
                self.derived.setdefault(base.key, []).append(definition)
                below.add(definition.name)
                self._note_mixed(base, definition)
        for name in module.definitions:
            owner, _, method = name.rpartition(".")
            if owner in below:
                self.methods_below.add(method)
                self._found_more(f"{DERIVED}{method}")

    def _note_mixed(self, mixin: Definition, below: Definition) -> None:
        """Note what a class that derives from several gives the methods of one by another's attributes."""
        bases = self.project.bases(below)
        if len(bases) < 2:
            return
        start = f"{mixin.name}."
        methods = {name.removeprefix(start) for name in mixin.module.definitions if name.startswith(start)}
        for method in methods - self.methods_below:
            self.methods_below.add(method)
            self._found_more(f"{DERIVED}{method}")
        for (key, text), kinds in tuple(self.facts.items()):
            if key == mixin.key and text.startswith("self.") and "fsdp" in kinds:
                self._note_above(below, text, kinds, 1, mixin)

    def _statement(self, statement: Statement) -> None:
        node, place = statement.node, statement.place
        for call in statement.calls:
            self._call(call, place, node)
            self._adds(call, place)
        for target, value in statement.named:
            self._assign(target, self.kinds(value, place), place)
        self._block(node, place)
        if isinstance(node, ast.Assign):
            for target, value in ((t, v) for each in node.targets for t, v in pairs(each, node.value)):
                here = replace(place, asked=(*place.asked, *chosen(value)))
                if isinstance(target, ast.Attribute):
                    self._note_patch(target.value, value, place)
                self._note_rewrapping(target, value, place)
                self._assign(target, self.kinds(value, place), here)
                self._note_picked(target, value, here)
                self._note_wholes(target, value, here)
            for definition in self.called(node.value, place):
                if definition.module is not place.module:
                    self._note_gives(node.value, place, definition)
        elif isinstance(node, ast.AugAssign):
            self._assign(node.target, held(self.kinds(node.value, place)), place)
        elif place.scope and (given := given_by(node)) is not None:
            self._return(given, place, is_yielded=is_one_of_many(node))

    def _note_picked(self, target: ast.expr, value: ast.expr, place: Place) -> None:
        """Note what a name is given by what is picked when it runs: the file itself does not show that."""
        text = dotted(target)
        kinds = self.picked_kinds(value, place) if text and isinstance(value, ast.Call) else set()
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Call):
            kinds = kinds or self.kinds(value, place)  # `WRAPPERS.get(name)(net)`
        elif text and isinstance(value, ast.Call) and isinstance(value.func, ast.Subscript) and not kinds:
            # `WRAPPERS[name](net)`: another may give a plain one. What is imported is told by itself.
            is_here = (dotted(value.func.value) or "").partition(".")[0] not in place.module.imports
            kinds = self.kinds(value, place) if is_here else kinds
            kinds = kinds | {"other"} if has_model(kinds) else kinds
        for each in self.called(value.func, place) if text and isinstance(value, ast.Call) else ():
            kinds |= self.returned(each) if each.key in self.gives_picked else set()
            if each.module is place.module and each.node.decorator_list:
                where = Place(each.module, each.name.rpartition(".")[0])
                kinds |= self.by_decorators(each.node, where)  # `@sharded` above what makes it
        if text and isinstance(value, ast.Attribute) and dotted(value) is None:
            kinds = self.kinds(value, place)  # `model = setup(cfg).model`
        if text and (has_model(kinds) or has_groups(kinds)):
            self._add(self._key(text, place), kinds, from_others=True)

    def _return(self, value: ast.expr, place: Place, *, is_yielded: bool = False) -> None:
        scope = f"{place.module.path}:{place.scope}"
        node = self.project.node(place.module, place.scope)
        names = [arg.arg for arg in node.args.args] if isinstance(node, _FUNCTIONS) else []
        for name in names:
            self.ask((scope, name))
        given = {kind for name in names for kind in self.facts.get((scope, name), ())}
        kinds = self.kinds(value, place) - inside_of(given)
        is_whole = (scope, dotted(value)) in self.wholes or is_found(self.project, node, value, place)
        kinds |= {"fsdp", "other"} if is_whole else set()
        if self.made.get((scope, dotted(value) or "")):
            kinds |= self.kinds(value, place) & {"fsdp", COMPILED}  # made here, whatever it is given with
        if isinstance(value, ast.Call) and always_makes(self.project, value.func, place):
            kinds |= self.kinds(value, place) & {"fsdp"}  # `net[0] = FSDP(net[0]); return FSDP(net)`
        if isinstance(value, ast.Call) and has_model(self.picked_kinds(value, place)):
            self.gives_picked.add(scope)
        if kinds:
            kinds = put(EACH, kinds) if is_yielded else kinds
            self._update(self.returns, scope, kinds)
            owner = self.project.class_of(place)
            if isinstance(node, _FUNCTIONS) and owner is not None and is_property(node):
                self._add((owner.key, f"self.{node.name}"), kinds, from_others=True)
            if owner is not None and is_about(kinds):
                self._note_holder(owner.key)  # `self.strategy.wrap(net)`: whose object it is matters

    def _note_decorated(self, node: Function, place: Place) -> None:
        """Note what a function gives because of what stands above it: ``@sharded``, which wraps the model."""
        kinds = self.by_decorators(node, place) if node.decorator_list else set()
        if kinds:
            name = f"{place.scope}.{node.name}" if place.scope else node.name
            self._update(self.returns, f"{place.module.path}:{name}", kinds)

    def _call(self, call: ast.Call, place: Place, node: ast.stmt) -> None:
        """Note what a call gives to the parameters of what it calls."""
        given, named = given_to(call, lambda node: self._given_there(node, place))
        self._follow_sharding(call, node, place)
        every = (*given, *named.values())
        is_about = any(map(self._is_about, every)) or any(map(tensors, every))
        is_known = is_about or any({"ddp", UNSHARDED} & kinds for kinds in every)
        self._note_asked(call, place)
        if is_about:  # `saver.save(model)`, `loss_fn(model)`
            asked = call.func.value if isinstance(call.func, ast.Attribute) else call.func
            self.look_at(owner.module.path for owner, _ in self.objects_in(self.kinds(asked, place)))
            self.look_at(self._made_at(asked, place))
        for definition in self.called(call.func, place):
            is_other = definition.module is not place.module
            if is_other or self._is_of_an_object(call.func, place) or self.gives_back(definition):
                self._note_gives(call.func, place, definition, call=call)
            self._follow_wrapping(call, node, place, definition, self.written(call.func, place))
            self._follow_sharded(call, definition, node, place)
            if is_about:
                self.look_at([definition.module.path])
                self.types_from |= {place.module.path} if is_other and self._is_typed(place) else set()
            if is_known:
                self._give_all(definition, call, place, given, named)
        for definition in self.overriding(call.func, place):
            self._note_gives(call.func, place, definition, {"other"})
            if is_about:
                self._give(definition, call, given, named)
        if is_about:
            self.give_otherwise(call, place, given, named)

    def _given_there(self, node: ast.expr, place: Place) -> set[str]:
        """Return what a call gives: no model that is sharded below `if not use_fsdp:`."""
        kinds = self.kinds(node, place) | self._kinds_of_self(node, place)
        return without_fsdp(kinds) if kinds and is_without_fsdp(self.project, place) else kinds

    def _note_asked(self, call: ast.Call, place: Place) -> None:
        """Note the method that a sharded model is asked for, what that gives ``self`` to, and partials."""
        for definition in self.called(call.args[0], place) if is_partial(call) else ():
            self._note_gives(call.args[0], place, definition)
        asked = asked_for(call.func, self.methods, lambda node: self.kinds(node, place), place.module)
        kinds = self.kinds(call.func.value, place) if isinstance(call.func, ast.Attribute) else set()
        for name in asked if isinstance(call.func, ast.Attribute) else ():
            self.methods.add(name)
            self._asked[name] = {"other", *(each for each in kinds if each == "fsdp" or each in BY_ANY)}
            self._found_more(f"{_ASKED}{name}")
            self.look_at(giving_self(self.project, name))

    def _kinds_of_self(self, node: ast.expr, place: Place) -> set[str]:
        """Return what ``self`` is that such a method gives to a function: ``penalty(self, 0.1)``."""
        if not isinstance(node, ast.Name) or node.id != "self":
            return set()
        name, owner = place.scope.rpartition(".")[2], self.project.class_of(place)
        self.ask(f"{_ASKED}{name}")
        is_module = owner is not None and isinstance(owner.node, ast.ClassDef) and bool(owner.node.bases)
        return self._asked.get(name, set()) if is_module else set()

    def _give_all(
        self,
        definition: Definition,
        call: ast.Call,
        place: Place,
        given: list[set[str]],
        named: dict[str, set[str]],
    ) -> None:
        """Note what a call gives to a function, or to a class and its constructor."""
        is_class = isinstance(definition.node, ast.ClassDef)
        made = self.project.method(definition, "__init__") if is_class else None
        if made is not None and any(map(self._is_about, (*given, *named.values()))):
            self.look_at([made.module.path])
        order = fields_of(self.project, definition) if is_class and made is None else ((), False)
        if order[0] and definition.module is not place.module:
            written = self.written(call.func, place)
            self.fields_told.setdefault(place.module.path, {})[written] = order
        # What a file shows by itself counts there by its place, above or below the wrapping; what it is told
        # of counts everywhere.
        is_told = not is_seen_alone(definition, call, place)
        given = given[1:] if is_by_class(call) else given
        bound_here = bound(made or definition, call, given, named, order[0])
        for name, kinds in (*bound_here, *rest_of(made or definition, given, named)):
            if kinds and made is None and is_class and self._is_about(kinds):
                self._note_holder(definition.key)  # a dataclass
            parameter = self._parameter(made or definition, name)
            if has_model(kinds) and self.left.note(parameter, made or definition, call):
                self._found_more(parameter)
            if kinds:
                self._give_one(parameter, kinds, is_told=is_told, is_here=definition.module is place.module)

    def _made_at(self, node: ast.expr, place: Place) -> Iterator[Path]:
        """Yield the files of what makes the object whose method is given a model: ``saver = get_saver()``."""
        root = (dotted(node.func if isinstance(node, ast.Call) else node) or "").partition(".")[0]
        written = place.module.imports.get(root, "") if root else ""  # `from savers import saver`
        yield from self.project.paths(place.module, written.rpartition(".")[0]) if written else ()
        for value in self.renamed.at(root, place) if root not in {"", "self", "cls"} else ():
            makers = self.called(value.node.func, value.place) if isinstance(value.node, ast.Call) else ()
            yield from (each.module.path for each in makers)

    def _parameter(self, definition: Definition, name: str) -> Fact:
        """Return what a parameter is called: of a class without a constructor of its own, the attribute."""
        if isinstance(definition.node, ast.ClassDef):
            return definition.key, f"self.{name}"
        return definition.key, name

    def _note_gives(
        self,
        func: ast.expr,
        place: Place,
        definition: Definition,
        beside: Collection[str] = (),
        call: ast.Call | None = None,
    ) -> None:
        """Note what calling a thing of another file gives, by the name that it has here."""
        written = self.written(func, place)
        found = set(returned_to(self, func, place, definition))
        found = found if call is None else self.without_others(found, call, definition, place)
        found |= set(beside) if found else set()
        if isinstance(definition.node, ast.ClassDef):
            found.add("fsdp" if self.project.is_subclass(definition) else f"{BARE}{definition.key}")
            found |= self.delegated(definition, {f"{ANY}{definition.key}"})
        if found and written:
            self.gives.setdefault((place.module.path, written), set()).update(found)
