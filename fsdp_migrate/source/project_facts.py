"""What assignments, loops, contexts and lists of a project's files say of names."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fsdp_migrate.source.always_wrapped import is_replaced
from fsdp_migrate.source.method_order import run_above
from fsdp_migrate.source.overridden_methods import overridden
from fsdp_migrate.source.picked_kinds import PickedKinds
from fsdp_migrate.source.project import Definition, Module, Place, dotted
from fsdp_migrate.source.project_arguments import is_made_there
from fsdp_migrate.source.project_containers import bound_by_match, kinds_of_targets, rooted, text_of
from fsdp_migrate.source.project_fields import makes_attribute
from fsdp_migrate.source.project_kinds import MAKES_ONE, Fact, is_about
from fsdp_migrate.source.project_names import node_of, set_by_names
from fsdp_migrate.source.project_switches import Mark
from fsdp_migrate.source.python.argument_places import argument_at
from fsdp_migrate.source.python.held import (
    COMPILED,
    EACH,
    UNSHARDED,
    attribute,
    entered,
    has_model,
    held,
    item,
    put,
    taken,
    whole,
)
from fsdp_migrate.source.python.wrappers import made_by
from fsdp_migrate.source.state_methods import is_a_module
from fsdp_migrate.source.wrapped_in_place import (
    as_it_was,
    given_for,
    gives_another_name,
    is_of_a_loop,
    other_names_above,
    put_into,
    sharded_parameters,
    whole_of_target,
    wrapped_parameters,
)


if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path
    from typing import TypeVar

    from fsdp_migrate.source.project_kinds import Key
    from fsdp_migrate.source.project_scopes import Scope
    from fsdp_migrate.source.python.links import Sharded

    _Key = TypeVar("_Key", str, Fact)


_WRAPS = "wraps:"
"""Before the key of a function: the scopes that ask whether it wraps parts of what it is given."""
_SHARDS = "shards:"
"""The same, whether it shards what it is given."""
_SETS = "sets:"
"""The same, which attributes of what it is given it makes models."""
_PATCHES = "patches:"
"""Before the key of a function: the scopes that ask whose method it is made."""
_ADDS = {"add": 0, "append": 0, "appendleft": 0, "insert": 1}


@dataclass(eq=False)
class ProjectFacts(PickedKinds):
    """Notes what is known of names, and which scopes are to be gone through again for it."""

    looked_at: list[Module] = field(default_factory=list)
    holders: set[str] = field(default_factory=set)
    """The classes whose objects hold models, by their keys."""
    wholes: set[Fact] = field(default_factory=set)
    """The names of models of which a scope wraps parts."""
    wraps_told: dict[Path, dict[str, set[tuple[int, str]]]] = field(default_factory=dict)
    """What each file is told of functions that wrap parts of what they are given, by their names there."""
    shards_told: dict[Path, dict[str, set[Sharded]]] = field(default_factory=dict)
    """The same of functions that shard what they are given."""
    sets_on_given: dict[str, set[tuple[str, str]]] = field(default_factory=dict)
    """By functions the attributes of what they are given that they make models; ``=model`` if assigned."""
    given_elsewhere: set[Fact] = field(default_factory=set)
    """The parameters that calls in other files than their own give models."""
    _news: set[Scope] = field(default_factory=set, repr=False)
    """The scopes to go through: they are new, or asked for something of which more was found since."""
    _patched: dict[str, list[Definition]] = field(default_factory=dict, repr=False)
    """The classes that functions are made methods of, by a statement of its own."""
    _made_there: dict[Fact, bool] = field(default_factory=dict, repr=False)
    _rewraps: set[Fact] = field(default_factory=set, repr=False)
    """The attributes of classes that wrap what was in them: ``self.model = FSDP(self.model)``."""
    _asked_paths: set[Path] = field(default_factory=set, repr=False)

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

    def look_at(self, paths: Iterable[Path]) -> None:
        """Add files to those that are gone through."""
        for path in paths:
            if path not in self._asked_paths:
                self._asked_paths.add(path)
                module = self.project.module(path)
                self.looked_at += [module] if module is not None else []

    def _assign(self, target: ast.expr, kinds: set[str], place: Place) -> None:
        for part, held_here in kinds_of_targets(target, kinds) if kinds else ():
            if isinstance(part, ast.Subscript):
                # `models[name] = FSDP(net)`
                root, inside = rooted(part, held_here)
                start, name = dotted(part.value) or "", text_of(part.slice)
                if start.endswith(".__dict__") and name is not None:
                    self._assign_name(f"{start.removesuffix('.__dict__')}.{name}", held_here, place)
                else:
                    self._assign_name(dotted(root), inside, place, is_part=True)
            else:
                self._assign_name(dotted(part), held_here, place)

    def _assign_name(
        self,
        text: str | None,
        kinds: set[str],
        place: Place,
        *,
        is_part: bool = False,
        is_aside: bool = False,
    ) -> None:
        if text is None or not kinds:
            return
        self._set_on_object(text, kinds, place, is_aside=is_aside)
        key = self._key(text, place, is_part=is_part)
        self._add(key, kinds, from_others=not key[0].startswith(f"{place.module.path}:"))
        if text.startswith(("self.", "cls.")) and self._is_about(kinds):
            self._note_holder(key[0])
        mark = Mark(place.start, place.loops, place.asked, is_aside)
        here = f"{place.module.path}:{place.scope}", text
        if "fsdp" in kinds and mark not in self.made.setdefault(here, []):
            self.made[here].append(mark)
            self._found_more(here)
        if {COMPILED, UNSHARDED} & kinds and mark not in self.compiled_at.setdefault(here, []):
            self.compiled_at[here].append(mark)
            self._found_more(here)
        if text.startswith(("self.", "cls.")) and self._is_about(kinds):
            self._note_above(self.project.class_of(place), key[1], kinds)

    def _note_above(
        self,
        owner: Definition | None,
        text: str,
        kinds: set[str],
        depth: int = 0,
        source: Definition | None = None,
    ) -> None:
        """Note what an attribute of a class may be in the methods of those that it derives from.

        Another class that derives from them may hold a plain model there. ``source``: the mixin that sets it.
        """
        first = source or owner
        is_rewrapped = first is not None and (first.key, text) in self._rewraps
        is_one = owner is not None and "fsdp" in kinds and depth < 4
        for base in self.project.bases(owner) if owner is not None and is_one else ():
            if base is not source and (is_rewrapped or not makes_attribute(base, text)):
                own = overridden(base, owner) if owner is not None else set()
                own |= self._run_above(base, first, text) if first is owner and first is not None else set()
                self.not_run[base.key] = self.not_run.get(base.key, own) & own
                self._update(self.below, (base.key, text), {"fsdp", "other"})
                self.look_at([base.module.path])
                self._note_above(base, text, kinds, depth + 1, first)
        if owner is not None and is_one and not depth:
            for below in self.derived.get(owner.key, ()):
                if len(self.project.bases(below)) > 1:
                    self._note_above(below, text, kinds, 1, owner)

    def _run_above(self, base: Definition, owner: Definition, text: str) -> set[str]:
        """Return the methods of a class that one below it runs before it shards what is in an attribute."""
        if self.from_others.get((owner.key, text)):
            return set()
        later: dict[str, list[int]] = {}
        for (scope, name), marks in self.made.items():
            if name == text and scope.startswith(f"{owner.key}."):
                method = scope.removeprefix(f"{owner.key}.").split(".", maxsplit=1)[0]
                later.setdefault(method, []).extend(mark.start[0] for mark in marks)
        return run_above(owner, base, later, self.project.texts.values())

    def _add(self, fact: Fact, kinds: Collection[str], *, from_others: bool = False) -> None:
        if kinds:
            self._update(self.facts, fact, kinds)
            if from_others:
                self._update(self.from_others, fact, kinds)

    def _give_one(self, fact: Fact, kinds: Collection[str], *, is_told: bool, is_here: bool = False) -> None:
        """Add what a call gives to a parameter. ``is_here``: it stands in the parameter's own file."""
        self.given_elsewhere |= set[Fact]() if is_here or not has_model(kinds) else {fact}
        self._add(fact, kinds, from_others=is_told)

    def _note_wholes(self, target: ast.expr, value: ast.expr, place: Place) -> None:
        """Note the model of which an assignment wraps a part: ``model.layers[i] = FSDP(layer)``."""
        text = whole_of_target(target, value) if has_model(self.kinds(value, place)) else None
        fact = f"{place.module.path}:{place.scope}", text or ""
        is_one = fact not in self.wholes and "fsdp" in self.facts.get(fact, ())
        if text is not None and not is_one:
            self._note_whole(text, place)

    def _note_whole(self, text: str, place: Place) -> None:
        if text in {"cls", "self"}:
            return
        scope = f"{place.module.path}:{place.scope}"
        self._assign_name(text, {"fsdp", "other"}, place)
        if (scope, text) not in self.wholes:
            self.wholes.add((scope, text))
            self._found_more(f"{_WRAPS}{scope}")

    def _follow_wrapping(
        self, call: ast.Call, node: ast.stmt, place: Place, definition: Definition, written: str
    ) -> None:
        """Note what a call gives to a function that wraps parts of it, in place: ``wrap_blocks(net)``."""
        self.ask(f"{_WRAPS}{definition.key}")
        if definition.key == f"{place.module.path}:{place.scope}":
            return
        for number, name in wrapped_parameters(definition, self.wholes, self.made):
            if definition.module is not place.module and written:
                told = self.wraps_told.setdefault(place.module.path, {})
                told.setdefault(written, set()).add((number, name))
            text = given_for(call, number, name)
            if text is not None and not is_replaced(self.project, node, call, text, definition):
                self._note_whole(text, place)

    def _follow_sharding(self, call: ast.Call, node: ast.stmt, place: Place) -> None:
        """Note the names of what a call shards in place, by other names too: ``model = FSDP(net)``."""
        known = self.project.qualified(dotted(call.func) or "?", place)
        kinds = made_by(known) or self.frameworks.of_call(call, place)
        for number, arg in enumerate(call.args if has_model(kinds) else ()):
            is_one = "fsdp" in kinds and number == 0
            self._note_sharded(arg, kinds if is_one else taken(str(number), kinds), node, place)

    def _follow_sharded(self, call: ast.Call, called: Definition, node: ast.stmt, place: Place) -> None:
        """Note what a call gives to a function, or the constructor of a class, that shards it in place."""
        is_class = isinstance(called.node, ast.ClassDef)
        made = self.project.method(called, "__init__") if is_class else called
        if made is None or made.key == f"{place.module.path}:{place.scope}":
            return
        self._follow_set(call, made, place)
        self.ask(f"{_SHARDS}{made.key}")
        for number, name in sharded_parameters(made, self.inner):
            kinds = {kind for kind in whole(self.facts.get((made.key, name), ())) if kind != "ddp"}
            written = self.written(call.func, place)
            is_told = made.module is not place.module or self._is_of_an_object(call.func, place)
            if is_told and written:
                told = self.shards_told.setdefault(place.module.path, {})
                told.setdefault(written, set()).add((number, name, frozenset({*kinds, "fsdp", "other"})))
            if (text := given_for(call, number, name)) is not None:
                self._note_sharded(node_of(text), {*kinds, "fsdp"}, node, place)

    def _follow_set(self, call: ast.Call, called: Definition, place: Place) -> None:
        """Note what a call gives to a function that makes an attribute of it a model: ``shard(self)``."""
        self.ask(f"{_SETS}{called.key}")
        known = tuple(self.sets_on_given.get(called.key, ()))
        for name, last in (each for each in known if not each[1].startswith("=")):
            found = argument_at(called.node, name, is_method=called.owner is not None)
            text = given_for(call, *found) if found is not None else None
            kinds = {*whole(taken(attribute(last), self.facts.get((called.key, name), set()))), "other"}
            # Of a module parts are wrapped: what that makes of it is asked elsewhere.
            owner = self.project.class_of(place) if text == "self" else None
            if owner is not None and not is_a_module(owner.module, owner.name):
                self._add((owner.key, f"self.{last}"), kinds, from_others=True)
                self._note_holder(owner.key)
                self.look_at([owner.module.path])
            elif text is not None and owner is None and (name, f"={last}") in known:
                self._set_on_object(f"{text}.{last}", kinds, place)

    def _note_sharded(self, given: ast.expr, kinds: set[str], node: ast.stmt, place: Place) -> None:
        text = dotted(as_it_was(given))
        if "fsdp" not in kinds or text is None or is_of_a_loop(text, place.loops):
            return
        scope = f"{place.module.path}:{place.scope}"
        if place.start not in self.inner.setdefault((scope, text), set()):
            self.inner[scope, text].add(place.start)
            self._found_more(f"{_SHARDS}{scope}")
        if gives_another_name(node, text):
            self._assign_name(text, {*whole(kinds), "other"}, place, is_aside=True)
        for older in other_names_above(self.project.node(place.module, place.scope), node, text):
            self._assign_name(older, {*whole(kinds), "other"}, place, is_aside=True)

    def written(self, func: ast.expr, place: Place) -> str:
        """Return how a file writes the name of a thing of another file, its imports taken in."""
        text = dotted(func)
        if text is None:  # `Strategy().prepare(net)`
            made = func.value if isinstance(func, ast.Attribute) else None
            start = self.written(made.func, place) if isinstance(made, ast.Call) else ""
            return f"{start}().{func.attr}" if start and isinstance(func, ast.Attribute) else ""
        root, _, rest = text.partition(".")
        if root in {"self", "cls"}:
            owner = self.project.class_of(place)
            return f"{owner.name}:{text}" if owner is not None else ""
        if root in place.module.imports:
            return self.project.imported(text, place)
        if self._is_of_an_object(func, place):
            return f"{place.scope}:{text}"
        return text if not rest else ""  # by `from module import *`

    def _is_of_an_object(self, func: ast.expr, place: Place) -> bool:
        """Tell whether an object's method is called, or the object itself: ``wrap(net)``."""
        if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Call):
            return True
        root, _, rest = (dotted(func) or "").partition(".")
        if root in {"cls", "self"} and rest:
            return self.project.own(rest, place) is None
        if root in {"", "cls", "self", "super()"} or root in place.module.imports:
            return False
        named = self.project.named(root, place)
        return named is None or (bool(rest) and isinstance(named.node, ast.ClassDef))

    def _set_on_object(self, text: str, kinds: set[str], place: Place, *, is_aside: bool = False) -> None:
        """Note what is set on an object from outside of its class: ``trainer.model = FSDP(net)``."""
        start, _, last = text.rpartition(".")
        if start == "self" and self.project.class_of(place) is None and self._is_about(kinds):
            for owner in self._patched_by(place):
                self._add((owner.key, text), kinds, from_others=True)
                self._note_holder(owner.key)
        if not start or start in {"self", "cls"} or not self._is_about(kinds):
            return
        if not last.startswith("_"):
            self._add(self._key(start, place, is_part=True), put(attribute(last), kinds))
        function = self.project.node(place.module, place.scope)
        scoped = f"{place.module.path}:{place.scope}"
        is_given = function is not None and argument_at(function, start, is_method=False) is not None
        told = {(start, last)} if is_aside else {(start, last), (start, f"={last}")}
        if is_given and not told <= self.sets_on_given.get(scoped, set()):
            self.sets_on_given.setdefault(scoped, set()).update(told)
            self._found_more(f"{_SETS}{scoped}")
        scope = self.project.class_of(place) if start.startswith("self.") else None
        asked = scope.key if scope is not None else f"{place.module.path}:{place.scope}", start
        if asked not in self._made_there:
            self._made_there[asked] = is_made_there(self.project, start, place)
        is_own = self._made_there[asked]
        is_name = start.rpartition(".")[2][:1].isupper()
        named = self.project.named(start, place) if is_name else None
        if not is_name:
            self._set_on_module(start, last, kinds, place)
        is_class = named is not None and isinstance(named.node, ast.ClassDef)
        owners = [owner for owner, _ in self.objects_in(self.lookup(start, place))]
        for owner in (*owners, *([named] if named is not None and is_class else [])):
            fact = (owner.key, f"self.{last}")
            was_own = self.set_on_own.get(fact)
            if was_own is None or (was_own and not is_own):
                self.set_on_own[fact] = is_own
                self._found_more(fact)
            self._add(fact, kinds, from_others=True)
            self._note_holder(owner.key)
            self.look_at([owner.module.path])

    def _set_on_module(self, start: str, name: str, kinds: Collection[str], place: Place) -> None:
        """Note a function of another file in whose place one is put that shards: ``lib.wrap = wrap_fsdp``."""
        written = self.project.qualified(start, place) if f"{MAKES_ONE}fsdp" in kinds else ""
        for path in self.project.paths(place.module, written) if written else ():
            module = self.project.module(path)
            if module is not None and name in module.definitions:
                self._add((f"{path}:", name), kinds, from_others=True)
                self.look_at([path])

    def _note_patch(self, on: ast.expr, value: ast.expr, place: Place) -> None:
        """Note the class that is given a function as a method: ``Trainer.setup = setup``."""
        start, text = dotted(on), dotted(value)
        if start is None or text is None or not start.rpartition(".")[2][:1].isupper():
            return
        owner, function = self.project.named(start, place), self.project.named(text, place)
        if owner is None or function is None or not isinstance(owner.node, ast.ClassDef):
            return
        if function.owner is None and not isinstance(function.node, ast.ClassDef):
            key = f"{_PATCHES}{function.key}"
            if owner not in self._patched.setdefault(key, []):
                self._patched[key].append(owner)
                self._found_more(key)
                self.look_at([owner.module.path, function.module.path])

    def _note_rewrapping(self, target: ast.expr, value: ast.expr, place: Place) -> None:
        """Note that a method wraps what is in an attribute: ``self.model = FSDP(self.model)``."""
        text, owner = dotted(target), self.project.class_of(place)
        if text is None or owner is None or not text.startswith("self.") or isinstance(value, ast.Name):
            return
        if any(isinstance(each, ast.Attribute) and dotted(each) == text for each in ast.walk(value)):
            self._rewraps.add((owner.key, text))

    def _patched_by(self, place: Place) -> list[Definition]:
        """Return the classes whose method a function is, by a statement that puts it there."""
        key = f"{_PATCHES}{place.module.path}:{place.scope}"
        self.ask(key)
        return self._patched.get(key, [])

    def _loop(self, node: ast.For | ast.AsyncFor, place: Place) -> None:
        """Note what a loop goes through: ``for model in models.values()``."""
        kinds = taken(EACH, self.kinds(node.iter, place)) | self.tensors.of_loop(node.iter, place)
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
        for target, each in kinds_of_targets(node.target, kinds) if kinds and not is_of_names else ():
            text = dotted(target)
            if text is not None:
                self._add(self._key(text, place), each)

    def _key(self, text: str, place: Place, *, is_part: bool = False) -> Fact:
        if text.startswith(("self.", "cls.")):
            owner = self.project.class_of(place)
            if owner is not None:
                return owner.key, f"self.{text.partition('.')[2]}"
        if "." not in text and isinstance(self.project.node(place.module, place.scope), ast.ClassDef):
            return f"{place.module.path}:{place.scope}", f"self.{text}"  # `KINDS = {...}` of a class
        root = text.partition(".")[0]
        if place.scope and (
            self.globals.is_said(root, place) or (is_part and self.globals.is_top_level(root, place))
        ):
            return f"{place.module.path}:", text
        # `STATE["model"] = model`, `state.model = model`: of what another file has at its top level.
        origin = self.globals.origin(text, place) if is_part or "." in text else None
        return origin or (f"{place.module.path}:{place.scope}", text)

    def _adds(self, call: ast.Call, place: Place) -> None:
        """Note what a call puts into a list, a dict or an object: ``models.append(FSDP(net))``."""
        named = list(set_by_names(call, place))
        for each in named:
            if each.value is not None:
                self._assign_name(each.text, self.kinds(each.value, place), place)
                self._note_patch(each.owner, each.value, place)
        whole, part = put_into(call)
        if not named and whole is not None and part is not None and "fsdp" in self.kinds(part, place):
            self._note_whole(whole, place)
        if not isinstance(call.func, ast.Attribute):
            return
        name = call.func.attr
        kinds: set[str] = set()
        if name in _ADDS and len(call.args) == _ADDS[name] + 1:
            value = call.args[-1]
            kinds = {"params"} if self._is_a_parameter(value, place) else put(EACH, self.kinds(value, place))
        elif name in {"extend", "update"}:
            kinds = held(self.kinds(call.args[0], place)) if call.args else set()
            for given in call.keywords:
                kinds |= put(item(given.arg), self.kinds(given.value, place)) if given.arg else set()
        root, kinds = rooted(call.func.value, kinds)
        where = dotted(root)
        if kinds and where is not None:
            self._set_on_object(where, kinds, place)
            key = self._key(where, place, is_part=True)
            self._add(key, kinds, from_others=not key[0].startswith(f"{place.module.path}:"))

    def _is_a_parameter(self, value: ast.expr, place: Place) -> bool:
        """Tell whether a loop goes through parameters of a model, and this is each of them, not its name."""
        for loop in reversed(place.loops) if isinstance(value, ast.Name) else ():
            if isinstance(loop, (ast.For, ast.AsyncFor)):
                target = loop.target
                last = target.elts[-1] if isinstance(target, ast.Tuple) else target
                if dotted(last) == dotted(value):
                    return "params" in self.kinds(loop.iter, place)
        return False

    def _is_about(self, kinds: set[str]) -> bool:
        """Tell whether FSDP1's models, or objects that hold some, are among what an expression may be."""
        return is_about(kinds) or any(self._holds(owner) for owner, _ in self.objects_in(kinds))

    def _holds(self, owner: Definition, depth: int = 0) -> bool:
        """Tell whether objects of a class, or of one that it derives from, hold models."""
        self.ask(owner.key)
        if owner.key in self.holders:
            return True
        return depth < 4 and any(self._holds(base, depth + 1) for base in self.project.bases(owner))

    def _block(self, node: ast.stmt, place: Place) -> None:
        """Note what a loop goes through, and what ``with unwrapped(model) as inner`` gives."""
        if isinstance(node, (ast.For, ast.AsyncFor)):
            self._loop(node, place)
        if isinstance(node, ast.Match):
            for text, kinds in bound_by_match(node, self.kinds(node.subject, place)):
                self._assign_name(text, kinds, place)
        for each in node.items if isinstance(node, (ast.With, ast.AsyncWith)) else ():
            if each.optional_vars is not None:
                self._assign(each.optional_vars, entered(self.kinds(each.context_expr, place)), place)
