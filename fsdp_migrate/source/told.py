"""What each file of a project is told by the others, of all that was found by following models."""

from __future__ import annotations

import ast
import functools
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from fsdp_migrate.source.asked_methods import methods_by_file, of_the_whole
from fsdp_migrate.source.class_checks import asking_functions, class_checks, looking_functions
from fsdp_migrate.source.composer_project import without_state
from fsdp_migrate.source.global_switches import calls_without
from fsdp_migrate.source.hooks_of_states import has_state_hooks
from fsdp_migrate.source.optimizer_classes import (
    made_beside_models,
    makers_beside,
    methods_by_file as optimizer_methods,
)
from fsdp_migrate.source.own_wrapping import sharding_parts
from fsdp_migrate.source.project import Definition, Module, Place, dotted
from fsdp_migrate.source.project_arguments import is_owed
from fsdp_migrate.source.project_fields import fields_of, stands_for_attribute
from fsdp_migrate.source.project_kinds import ANY, BARE, IS, MODELS, Fact, is_about
from fsdp_migrate.source.project_names import node_of
from fsdp_migrate.source.python.accelerate_models import NORM
from fsdp_migrate.source.python.held import (
    ARGUMENT,
    BY_ANY,
    COMPILED,
    FLAT,
    HANDS_ON,
    TENSOR,
    WRAPS,
    attribute,
    has_model,
    put,
    stood_for,
    taken,
    whole,
)
from fsdp_migrate.source.python.optimizers import STATE
from fsdp_migrate.source.python.walked import children_of
from fsdp_migrate.source.python.wrappers import MAKES
from fsdp_migrate.source.state_methods import classes_that_save, is_a_module, saves_itself, states_by_file
from fsdp_migrate.source.told_parameters import told_parameters
from fsdp_migrate.source.wrapper_classes import class_functions, no_modules, subclasses, wrapper_classes


if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from pathlib import Path

    from fsdp_migrate.source.following import _Following
    from fsdp_migrate.source.optimizer_classes import Made
    from fsdp_migrate.source.python.links import Links


_TOLD = MODELS | {NORM, STATE, MAKES, TENSOR, "other", FLAT} | BY_ANY
_WRAPPED = ".module>fsdp"
_DEEPEST = 3
_TYPES = re.compile(r"\b(?:FULL|LOCAL|SHARDED)_STATE_DICT\b")


_Told = TypeVar("_Told")


def _one_type(texts: Iterable[str]) -> str:
    """Return the type of state dicts that sources name, if each names it and no other one."""
    named = {frozenset(_TYPES.findall(text)) for text in texts}
    one = named.pop() if len(named) == 1 else ()
    return next(iter(one)) if len(one) == 1 else ""


@dataclass(eq=False)
class Told:
    """Tells the files. Only where all facts are known: what objects hold is looked for once."""

    known: _Following
    _inside: dict[str, set[str]] = field(default_factory=dict, repr=False)

    def links(self) -> dict[Path, Links]:
        """Return what each file should be told of by the others."""
        self.known.seen.clear()
        self.known.names_seen.clear()
        gives, given = self._named()
        project, looked_at = self.known.project, self.known.looked_at
        types, one_type = self._types()
        whole_project = self._of_all()
        names, taken = self.known.handed_on.names, self.known.handed_on.taken
        optimizers = self._optimizers()
        methods = methods_by_file(project, self.known.methods)
        states = states_by_file(project, self.known.methods)
        makers = optimizer_methods(project, looked_at, self.known.models_of)
        kept = told_parameters(self.known)
        paths = {m.path for m in looked_at}
        paths.update(gives, given, names, taken, methods, states, makers)
        parts = sharding_parts(self.known, looked_at)
        paths.update(optimizers.classes, optimizers.names, parts.certain, parts.asked)
        wrappers = {each.path: wrapper_classes(project, each) for each in looked_at}
        subclasses_of, plain = subclasses(project, looked_at), no_modules(project, looked_at)
        checks, asking = class_checks(project, looked_at), asking_functions(project, looked_at)
        looking = looking_functions(project, looked_at)
        elsewhere = self._given_elsewhere()
        return {
            p: replace(
                whole_project,
                gives=gives.get(p, {}),
                is_given=given.get(p, {}),
                wraps_given=_frozen(self.known.wraps_told.get(p, {})),
                shards_given=_frozen(self.known.shards_told.get(p, {})),
                gives_parameters=kept.gives.get(p, {}),
                keeps_parameters=kept.keeps.get(p, {}),
                takes_lists=kept.takes.get(p, {}),
                names={**class_functions(subclasses_of.get(p, {})), **names.get(p, {})},
                subclasses=frozenset(subclasses_of.get(p, ())),
                no_modules=plain.get(p, frozenset()),
                taken=frozenset(taken.get(p, ())),
                optimizers=frozenset(optimizers.classes.get(p, ())),
                whole_optimizers=optimizers.of_wholes(p),
                methods=methods.get(p, frozenset()),
                state_methods=states.get(p, frozenset()),
                wrappers=wrappers.get(p, frozenset()),
                checks=checks.get(p, frozenset()),
                asking=asking.get(p, {}),
                looking=looking.get(p, {}),
                own_optimizers=frozenset(optimizers.names.get(p, ())),
                own_states=frozenset(optimizers.with_states),
                optimizer_methods=makers.get(p, frozenset()),
                fields=self.known.fields_told.get(p, {}),
                constants_given=self.known.left.told(str(p), self.known.made),
                plain_calls=self.known.told_off.in_file(p),
                shards_parts=parts.certain.get(p, frozenset()),
                asked_for_parts=parts.asked.get(p, frozenset()),
                types_elsewhere=bool(types - {p}),
                type_elsewhere=one_type(p),
                not_run=self._not_run(p),
                derived_elsewhere=self._derived_elsewhere(p),
                given_elsewhere=elsewhere.get(p, frozenset()),
            )
            for p in paths
        }

    def _types(self) -> tuple[set[Path], Callable[[Path], str]]:
        """Return the files that set state dict types, and what tells the one type that all others set."""
        texts = {p: text for p, text in self.known.project.texts.items() if "set_state_dict_type" in text}
        by_contexts = set(self.known.types_from)

        def one_type(path: Path) -> str:
            others = (text for each, text in texts.items() if each != path)
            return "" if by_contexts - {path} else _one_type(others)

        return {*texts, *by_contexts}, one_type

    def _of_all(self) -> Links:
        """Return what each file is told that holds of the project as a whole."""
        project, near = self.known.project, {each.path for each in self.known.looked_at}
        whole_project = of_the_whole(project, near)
        return replace(
            whole_project,
            saves_itself=saves_itself(project),
            own_saves=classes_that_save(project),
            state_hooks=has_state_hooks(project, self.known.around),
        )

    def _optimizers(self) -> Made:
        """Return the optimizers that are made beside sharded models, and look at the files that make them."""
        # The optimizers that Composer's Trainer is given are looked for by what gives them.
        facts = ((key, without_state(kinds)) for (key, _), kinds in self.known.facts.items())
        owners = {key.rpartition(":")[0] for key, kinds in facts if is_about(kinds)}
        beside = makers_beside(self.known.looked_at, {key for key, _ in self.known.made}, self.known.called)
        self.known.look_at(beside)
        return made_beside_models(
            self.known.looked_at,
            owners.union(map(str, beside)),
            self.known.called,
            # What a framework shards asks for no switch of the project's own.
            calls_without(self.known.project) if not self.known.frameworks.files else (),
        )

    def _not_run(self, path: Path) -> frozenset[str]:
        every = self.known.not_run.items()
        return frozenset(name for key, names in every if key.startswith(f"{path}:") for name in names)

    def _derived_elsewhere(self, path: Path) -> frozenset[str]:
        """Return the classes of a file that other files derive theirs from."""
        every = ((*self.known.project.split(key), below) for key, below in self.known.derived.items())
        return frozenset(
            name for where, name, below in every if where == path if any(e.module.path != path for e in below)
        )

    def _given_elsewhere(self) -> dict[Path, frozenset[tuple[str, str]]]:
        """Return by file the parameters of its functions that calls in other files give models."""
        found: dict[Path, frozenset[tuple[str, str]]] = {}
        for key, text in self.known.given_elsewhere:
            path, name = self.known.project.split(key)
            found[path] = found.get(path, frozenset()) | {(name, text)}
        return found

    def _named(
        self,
    ) -> tuple[dict[Path, dict[str, frozenset[str]]], dict[Path, dict[tuple[str, str], frozenset[str]]]]:
        """Return by file what calls of the others' things give, and what names are given by the others."""
        gives: dict[Path, dict[str, frozenset[str]]] = {}
        given: dict[Path, dict[tuple[str, str], frozenset[str]]] = {}
        for (path, written), kinds in self.known.gives.items():
            # Of what a call gives attributes are asked at once: `Context.get().model`.
            told = self.told(kinds).union(*(self._held_by_one(kind) for kind in kinds))
            if told:
                gives.setdefault(path, {})[written] = told
        for (key, text), kinds in self.known.from_others.items():
            path, name = self.known.project.split(key)
            told = self.told(kinds)
            if told:
                given.setdefault(path, {})[name, text] = told
        for module in self.known.looked_at:
            for (name, text), kinds in (*self._imported(module), *self._inherited(module)):
                given.setdefault(module.path, {})[name, text] = frozenset(kinds)
        return gives, given

    def _inherited(self, module: Module) -> Iterator[tuple[Fact, set[str]]]:
        """Yield the attributes that classes have by classes of other files, or objects have at all."""
        scopes = [("", module.tree), *((each.name, each.node) for each in module.definitions.values())]
        texts: dict[int, set[str]] = {}
        _note_attributes(module.tree, texts)
        for name, scope in scopes:
            place, key = Place(module, name), f"{module.path}:{name}"
            is_class = isinstance(scope, ast.ClassDef)
            for text in texts[id(scope)]:
                is_own = text.startswith("self.")
                if is_class is not is_own or not (is_own or self._is_known(text, place)):
                    continue
                own = self.known.facts.get((key, text), set())
                told = self.told(self.known.text_kinds(text, node_of(text), place) - own)
                if told - {"other"}:  # which alone says nothing of a name
                    yield (name, text), set(told)

    def _is_known(self, text: str, place: Place) -> bool:
        """Tell whether anything is known of an attribute's object, or of a name of another file."""
        root = text.partition(".")[0]
        return root in place.module.imports or bool(self.known.lookup(root, place))

    def _imported(self, module: Module) -> Iterator[tuple[Fact, set[str]]]:
        """Yield the models that a file imports from the top level of another."""
        for name in module.imports:
            told = self.told(self.known.lookup(name, Place(module, "")))
            if told:
                yield ("", name), set(told)

    def told(self, kinds: Collection[str]) -> frozenset[str]:
        """Return kinds as a source can be told them: objects in lists by what their attributes are.

        What an object itself holds is told with the attributes that are asked for; that it wraps a model,
        whose parameters are its own then, at once. Only where all facts are known: what objects hold is
        looked for once.
        """
        found: set[str] = set()
        for kind in kinds:
            before, mark, last = kind.rpartition(">")
            if last in _TOLD or kind.startswith((ARGUMENT, HANDS_ON)) or kind.endswith(COMPILED):
                found.add(kind)
            elif last.startswith((IS, ANY, BARE)):
                inside = self._held_by_one(last)
                if mark:
                    found |= {f"{before}>{each}" for each in inside}
                elif _WRAPPED in inside or (has_model(inside) and self._is_a_module(last)):
                    found.add(WRAPS)
                found |= set() if mark else self._stood_for(last, inside)
        return frozenset(found)

    def _held_by_one(self, kind: str) -> set[str]:
        """Return what an object holds that is made elsewhere, by its class alone."""
        if not kind.startswith((IS, ANY, BARE)):
            return set()
        if kind not in self._inside:
            self._inside[kind] = self._in_object(kind)
        return self._inside[kind]

    def _stood_for(self, kind: str, inside: Collection[str]) -> set[str]:
        """Return what an object stands for that hands on what it is asked to a model that is set later."""
        for owner, _ in self.known.objects_in({kind}):
            name = stands_for_attribute(owner)
            if name is not None:
                return stood_for(name, taken(attribute(name), inside))
        return set()

    def _is_a_module(self, kind: str) -> bool:
        """Tell whether an object is of a module's class: the parameters of its parts are its own."""
        owners = [owner for owner, _ in self.known.objects_in({kind})]
        return any(is_a_module(owner.module, owner.name) for owner in owners)

    def _in_object(self, kind: str) -> set[str]:
        found: set[str] = set()
        for owner, start in self.known.objects_in({kind}):
            without = {*fields_of(self.known.project, owner)[0]} if start != ANY else set()
            names = (text.removeprefix("self.") for text, _ in self._by_owner.get(owner.key, ()))
            without.update(name for name in names if start == BARE and is_owed(self.known, owner, name))
            found |= self._attributes(owner, without)
        return found

    def _attributes(self, owner: Definition, without: Collection[str], depth: int = 0) -> set[str]:
        found: set[str] = set()
        for text, kinds in self._by_owner.get(owner.key, ()):
            name = text.removeprefix("self.")
            if "." not in name and not name.startswith("_") and name not in without:
                found |= put(attribute(name), (whole(kinds) & _TOLD) | ({COMPILED} & kinds))
        for base in self.known.project.bases(owner) if depth < _DEEPEST else ():
            found |= self._attributes(base, without, depth + 1)
        return found

    @functools.cached_property
    def _by_owner(self) -> dict[str, list[tuple[str, set[str]]]]:
        found: dict[str, list[tuple[str, set[str]]]] = {}
        for (key, text), kinds in self.known.facts.items():
            if text.startswith("self."):
                found.setdefault(key, []).append((text, kinds))
        return found


def _note_attributes(scope: ast.AST, texts: dict[int, set[str]]) -> set[str]:
    """Note the attributes in each function and class, those of the ones in it too; a tree is walked once."""
    found: set[str] = set()
    left = children_of(scope)
    while left:
        node = left.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found |= _note_attributes(node, texts)
            continue
        text = dotted(node) if isinstance(node, ast.Attribute) else None
        found |= {text} if text else set()
        left += children_of(node)
    texts[id(scope)] = found
    return found


def _frozen(told: Mapping[str, Collection[_Told]]) -> dict[str, frozenset[_Told]]:
    return {name: frozenset(each) for name, each in told.items()}
