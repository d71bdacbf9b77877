"""Which expressions are FSDP1 models: followed through assignments, calls and returns of one source."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.python.annotations import annotated, objects
from fsdp_migrate.source.python.asked_as_models import asked_as_models, is_model
from fsdp_migrate.source.python.by_name import (
    is_property,
    set_by_name,
    set_by_names,
    set_in_dict,
    sets_any_name,
)
from fsdp_migrate.source.python.containers import added_to, pairs, public_owner, rooted
from fsdp_migrate.source.python.evidence import clipped_as_models, given_as_models
from fsdp_migrate.source.python.given_itself import gives_itself
from fsdp_migrate.source.python.given_plain import gives_plain
from fsdp_migrate.source.python.held import (
    BY_ANY,
    COMPILED,
    EACH,
    attribute,
    entered,
    has_model,
    held,
    inside_of,
    item,
    put,
    taken,
    whole,
    without_models,
)
from fsdp_migrate.source.python.lambdas import given_to_lambdas
from fsdp_migrate.source.python.loops import loops_around
from fsdp_migrate.source.python.makers import put_into, replaced_part
from fsdp_migrate.source.python.match_patterns import bound_by
from fsdp_migrate.source.python.model_kinds import ModelKinds
from fsdp_migrate.source.python.never_run import NeverRun
from fsdp_migrate.source.python.nodes import argument_of, dotted, parameters_of, placed_parameters, walk_for
from fsdp_migrate.source.python.object_fields import attributes_of, bound_fields, classes, init_of, rest_of
from fsdp_migrate.source.python.older_names import inner_name, inner_parameters, older_names
from fsdp_migrate.source.python.optimizers import OF_A_MODEL
from fsdp_migrate.source.python.shown_here import ShownHere
from fsdp_migrate.source.python.switches import Switches
from fsdp_migrate.source.python.wrapped_in_place import WrappedAnew, given_for, wrapped_parameters
from fsdp_migrate.source.python.wrappers import given_to_fsdp2
from fsdp_migrate.source.python.written_names import written_names


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.model_kinds import Key


_MAX_PASSES = 6


@dataclass(eq=False)
class Models(ModelKinds):
    """Finds the FSDP1 models of a source. Reads only; no code is imported or run."""

    _objects: list[tuple[Key, cst.ClassDef]] = field(init=False)
    _of_fsdp2: set[Key | None] = field(init=False)
    _asked: dict[str, set[str]] = field(default_factory=dict, repr=False)
    """The methods of its own that a sharded model is asked for, and what that model is."""
    _running: dict[tuple[type[cst.CSTNode], ...], list[cst.CSTNode]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.shown_here = ShownHere(self.index, self.guards)
        self.switches = Switches(self.index, self.guards)
        self.never = NeverRun(self.index)
        self._of_fsdp2 = {self.key_of(each) for each in given_to_fsdp2(self.index, self._makes)}
        for given, kind in annotated(self.index):
            self._add_given(given, {kind})
        self._objects = objects(self.index)
        for model, call in given_as_models(self.index, self.guards):
            self._note_evidence(model, call, {"fsdp"})
        for model, call, kinds in (
            () if self.links.clips_itself else clipped_as_models(self.index, self.guards)
        ):
            self._note_evidence(model, call, kinds)
        self._note_links()
        for function, name, kinds in self.frameworks.given_to_hooks():
            self._add_given((function, name), kinds)
        before = noted = -1
        # A pass may tell what an earlier line depends on. Facts only grow: one that adds none is the last.
        for _ in range(_MAX_PASSES):
            noted = self._noted()
            self._pass()
            size = sum(sum(map(len, each.values())) for each in (self.facts, self.returns, self._asked))
            if size == before:
                break
            before = size
        if noted != self._noted():
            self._known.clear()

    def _noted(self) -> int:
        """Return how much is noted, which only grows: where it is the same, answers are, too."""
        held = (self.facts, self.made, self.added, self.returns, self.attributes, self.wholes, self.evidence)
        every = (*held, self.inner, self._asked)
        alone = len(self.given) + len(self.sets_any_name)
        return alone + sum(len(each) + sum(map(len, each.values())) for each in every)

    def _makes(self, func: cst.CSTNode) -> bool:
        return self.is_constructor(func) and not self.never.holds(func)

    @property
    def _anew(self) -> WrappedAnew:
        return WrappedAnew(self.guards, self._makes)

    def _note_evidence(self, model: cst.BaseExpression, call: cst.Call, kinds: set[str]) -> None:
        if (key := self.key_of(model)) is not None and not self.never.holds(call):
            self._add(key, kinds)
            self.evidence.setdefault(key, []).append(call)

    def is_evident(self, node: cst.BaseExpression) -> bool:
        """Tell whether FSDP1's functions are given it as their model, and nothing here makes it one."""
        key = self.key_of(node)
        return key is not None and bool(self.evidence.get(key)) and not self.made.get(key)

    def _add(self, key: Key | None, kinds: set[str]) -> None:
        if key is not None and kinds:
            self.facts.setdefault(key, set()).update({"fsdp2"} if key in self._of_fsdp2 else kinds)
            if key[1].startswith("self.") and isinstance(key[0], cst.ClassDef):
                self.attributes.setdefault(key[0], set()).add(key[1])

    def _note_links(self) -> None:
        """Note what other files give to the functions and classes of this one."""
        if not self.links.is_given:
            return
        definitions = (self.index.by_kind.get(kind, ()) for kind in (cst.FunctionDef, cst.ClassDef))
        for node in (self.index.module, *itertools.chain(*definitions)):
            name = self.index.path_of(node)
            for (scope, text), kinds in self.links.is_given.items():
                if scope == name:
                    self._add((node, text), set(kinds))
                    self.given.add((node, text))

    def _pass(self) -> None:
        # Within a chain of calls each would ask for all before it, twice.
        self._known.clear()
        for key, owner in self._objects:
            self._add_given(key, attributes_of(self, owner))
        for node in self._nodes(cst.Assign, cst.AnnAssign, cst.NamedExpr, cst.AugAssign):
            self._follow_assignment(node)
        for node in self._nodes(cst.For, cst.CompFor):
            self._follow_loop(node)
        for node in self._nodes(cst.WithItem):
            self._follow_with(node)
        for node in self._nodes(cst.Match):
            match = cst.ensure_type(node, cst.Match)
            for name, kinds in bound_by(match, self.kinds(match.subject)):
                self._assign(name, kinds)
        for node in self._nodes(cst.Return, cst.Yield):
            self._follow_return(node)
        for node in self._nodes(cst.Call):
            self._follow_call(node)

    def _nodes(self, *kinds: type[cst.CSTNode]) -> list[cst.CSTNode]:
        """Return the nodes of some kinds that may run with FSDP1."""
        if kinds not in self._running:
            every = (node for kind in kinds for node in self.index.by_kind.get(kind, ()))
            self._running[kinds] = [node for node in every if not self.never.holds(node)]
        return self._running[kinds]

    def _follow_assignment(self, node: cst.CSTNode) -> None:
        if isinstance(node, cst.Assign):
            for target, value in ((p, v) for each in node.targets for p, v in pairs(each.target, node.value)):
                kinds = self.kinds(value) or self._kinds_of_kept(target, value)
                if gives_itself(self.index, target, value):
                    self._add(self.key_of(target), kinds)  # it makes no model of it, wherever it stands
                    continue
                self._assign(target, kinds)
                whole, part = replaced_part(target, value)
                if whole is not None and has_model(kinds) and not self._is_whole_one(whole):
                    self._note_whole(whole, part)
        elif isinstance(node, (cst.AnnAssign, cst.NamedExpr)) and node.value is not None:
            self._assign(node.target, self.kinds(node.value))
        elif isinstance(node, cst.AugAssign) and isinstance(node.target, (cst.Name, cst.Attribute)):
            self._add(self.key_of(node.target), held(self.kinds(node.value)))  # `models += [FSDP(net)]`

    def _kinds_of_kept(self, target: cst.BaseExpression, value: cst.BaseExpression) -> set[str]:
        """Return what ``self`` keeps of a model that a framework shards: ``self.net = pl_module.net``."""
        if not isinstance(target, cst.Attribute) or not isinstance(value, cst.Attribute):
            return set()
        if dotted(target.value) != "self" or not is_model(
            value.attr.value, asked_as_models(self.index, or_called=False)
        ):
            return set()
        model = self.sharded_with(value)
        kinds = self.kinds(model) if model is not None and self.certainty(model) is not None else set()
        return {*whole(kinds), "other"} if BY_ANY & kinds else set()

    def _assign(self, target: cst.BaseExpression, kinds: set[str]) -> None:
        if not kinds:
            return
        if isinstance(target, (cst.Tuple, cst.List)):
            for place, element in enumerate(target.elements):
                is_rest = isinstance(element, cst.StarredElement)
                self._assign(
                    element.value, put(EACH, taken(EACH, kinds)) if is_rest else taken(str(place), kinds)
                )
        elif isinstance(target, (cst.Name, cst.Attribute)):
            self._assign_key(target, kinds)
            owner = public_owner(target)
            if owner is not None:  # `state.model = FSDP(net)`: whoever is given `state` is given its model
                self._add(self.key_of(owner[0]), put(attribute(owner[1]), kinds))
        elif isinstance(target, cst.Subscript) and set_in_dict(target) is not None:
            self._assign_key(target, kinds)
        elif isinstance(target, cst.Subscript):
            self._assign_item(target, kinds)

    def _assign_item(self, target: cst.Subscript, kinds: set[str]) -> None:
        owner = self.index.class_of(target) if dotted(target.value) == "self.__dict__" else None
        if owner is not None and has_model(kinds):
            self.sets_any_name.add(owner)
        root, inside = rooted(target, kinds)
        key = self.key_of(target.value)
        self._add(whole := self.key_of(root), inside)
        if whole is not None and has_model(kinds) and target not in self.added.setdefault(whole, []):
            self.added[whole].append(target)
        if "fsdp" in kinds and isinstance(target.value, cst.Attribute):
            self._note_whole(
                target.value.value, target.value.attr.value
            )  # `model.layers[i] = FSDP(model.layers[i])`
        items = None if key is None else (key[0], f"{key[1]}[]")
        if items is not None and "fsdp" in kinds and target not in self.made.setdefault(items, []):
            self.made[items].append(target)

    def _assign_key(self, target: cst.CSTNode, kinds: set[str]) -> None:
        key = self.key_of(target)
        self._add(key, kinds)
        if key is not None and has_model(kinds) and target not in self.made.setdefault(key, []):
            self.made[key].append(target)

    def _follow_loop(self, node: cst.CSTNode) -> None:
        """Note what ``for m in FSDP.fsdp_modules(model)``, or ``in models.values()``, goes through."""
        assert isinstance(node, (cst.For, cst.CompFor))
        for target, kinds in self._kinds_of_targets(node):
            self._add_given(self.key_of(target), kinds)

    def _follow_with(self, node: cst.CSTNode) -> None:
        """Note what ``with unwrapped(model) as inner`` gives: what a generator yields, or the object."""
        assert isinstance(node, cst.WithItem)
        if node.asname is not None and isinstance(node.asname.name, cst.BaseExpression):
            self._assign(node.asname.name, entered(self.kinds(node.item)))

    def _add_given(self, key: Key | None, kinds: set[str]) -> None:
        self._add(key, kinds)
        if key is not None and has_model(kinds):
            self.given.add(key)

    def _follow_return(self, node: cst.CSTNode) -> None:
        function = self.index.function(node)
        value = node.value if isinstance(node, (cst.Return, cst.Yield)) else None
        is_from = isinstance(value, cst.From)
        value = value.item if isinstance(value, cst.From) else value
        if function is not None and isinstance(value, cst.BaseExpression):
            given = (self.facts.get((function, each.name.value), ()) for each in parameters_of(function))
            kinds = self.kinds(value) - inside_of({kind for kinds in given for kind in kinds})
            kinds |= self._given_to_itself(value, function)
            is_whole = self.key_of(value) in self.wholes  # whose parts this function wraps
            kinds |= {"fsdp", "other"} if is_whole or self._is_found(value) else set()
            if (key := self.key_of(value)) is not None and self.made.get(key):
                kinds |= self.kinds(value) & {"fsdp", COMPILED}  # made here, whatever else it is given with
            if isinstance(value, cst.Call) and self._anew.always(value.func):
                kinds |= self.kinds(value) & {"fsdp"}  # `net[0] = FSDP(net[0]); return FSDP(net)`
            kinds = put(EACH, kinds) if isinstance(node, cst.Yield) and not is_from else kinds
            if kinds:
                self.returns.setdefault(function, set()).update(kinds)
                owner = self.index.parents.get(self.index.parents[function])
                if isinstance(owner, cst.ClassDef) and is_property(function):
                    self._add_given((owner, f"self.{function.name.value}"), kinds)

    def _given_to_itself(self, value: cst.BaseExpression, function: cst.FunctionDef) -> set[str]:
        """Return what a function gives in the end that calls itself with it: ``return unwrap(m.module)``."""
        if not isinstance(value, cst.Call) or not value.args:
            return set()
        names = {each.name.value for each in parameters_of(function)}
        returned = (each.value for each in walk_for(function.body, cst.Return))
        gives_back = any(isinstance(each, cst.Name) and each.value in names for each in returned)
        is_its_own = gives_back and function in self.guards.functions(value.func)
        return whole(self.kinds(value.args[0].value)) if is_its_own else set()

    def _is_found(self, node: cst.BaseExpression) -> bool:
        """Tell whether it is what a function looked for, by FSDP1's class, in what it is given."""
        if not isinstance(node, cst.Name) or node not in self.index.scopes or not self.is_guarded(node):
            return False
        return all(binding.kind != "param" for binding in self.index.scopes[node].lookup(node.value))

    def _is_whole_one(self, node: cst.BaseExpression) -> bool:
        """Tell whether a model is one itself, whatever its parts are."""
        key = self.key_of(node)
        return key is not None and key not in self.wholes and "fsdp" in self.facts.get(key, ())

    def _note_whole(self, node: cst.BaseExpression, part: str = "*") -> None:
        """Note that a model has parts that are wrapped, whether it is wrapped itself or not."""
        owner = self.index.class_of(node) if dotted(node) == "self" else None
        if owner is not None:
            self.sets_any_name.add(owner)  # a function wraps attributes of it, by their names
        key = self.key_of(node)
        if key is not None:
            self.wholes.setdefault(key, set()).add(part)
        if key is not None and node not in self.made.setdefault(key, []):
            self._add(key, {"fsdp", "other"})
            self.made[key].append(node)

    def _follow_call(self, node: cst.CSTNode) -> None:
        assert isinstance(node, cst.Call)
        named = set_by_name(node)
        if named is not None and named.value is not None and dotted(named.owner) == "self":
            self._assign_key(node, self.kinds(named.value))
            return
        self._follow_names(node)
        whole, part = put_into(node)
        if whole is not None and part is not None and "fsdp" in self.kinds(part):
            self._note_whole(whole)
        for where, step, value in added_to(node):
            self._put(where, step, value)
        self._follow_older_names(node)
        self._follow_told(node)
        for given in self._wrapped_in(node):
            self._note_whole(given)
        self._follow_asked(node)
        self._follow_functions(node)
        for owner in classes(self.index, node.func):
            made = init_of(owner)
            if made is not None:
                self._follow_arguments(node, made)
                self._follow_inner(node, made)
        for name, _, value in bound_fields(self.index, node, self.links.fields):
            for owner in classes(self.index, node.func):
                self._add_given((owner, f"self.{name}"), self.kinds(value))

    def _follow_functions(self, call: cst.Call) -> None:
        """Note what a call gives to functions of this source, also to those without a name."""
        for function in self.guards.functions(call.func):
            self._follow_arguments(call, function)
            self._follow_inner(call, function)
        for unnamed, name, value in given_to_lambdas(self.index, call):
            self._add_given((unnamed, name), self.kinds(value))

    def _follow_asked(self, call: cst.Call) -> None:
        """Note the method of its own that a sharded model is asked for: ``model.train_loss(y)``."""
        func = call.func
        if isinstance(func, cst.Attribute) and func.attr.value not in catalog.OF_MODULES:
            kinds = self.kinds(func.value)
            if "fsdp" in kinds and not self.is_before_wrapping(func.value):
                found = {each for each in kinds if each == "fsdp" or each in BY_ANY}
                self._asked.setdefault(func.attr.value, {"other"}).update(found)

    def _kinds_of_self(self, node: cst.BaseExpression) -> set[str]:
        """Return what ``self`` is that such a method gives to a function: ``penalty(self, 0.1)``."""
        function = self.index.function(node) if dotted(node) == "self" else None
        owner = self.index.class_of(node) if function is not None else None
        if function is None or owner is None or not owner.bases:
            return set()
        return self._asked.get(function.name.value, set())

    def _follow_names(self, call: cst.Call) -> None:
        """Note what is set by names: those of a loop, or one that is known only when it runs."""
        owner = self.index.class_of(call)
        if owner is None:
            return
        for text, value in set_by_names(self.index, call):
            key, kinds = (owner, f"self.{text}"), self.kinds(value)
            self._add(key, kinds)
            if has_model(kinds) and call not in self.made.setdefault(key, []):
                self.made[key].append(call)
        unnamed = sets_any_name(self.index, call)
        if unnamed is not None and has_model(self.kinds(unnamed)):
            self.sets_any_name.add(owner)

    def _put(self, where: cst.BaseExpression, step: str, value: cst.BaseExpression) -> None:
        """Note what is put into a list or a dict: ``models.append(FSDP(net))``."""
        given = self.kinds(value)
        inside = put(step, given) if step else held(given) | (given & {"params"})
        if step == EACH and not given and self._is_a_parameter(value):
            inside = {"params"}
        where, kinds = rooted(where, inside)
        key = self.key_of(where)
        self._add(key, kinds)
        if key is not None and has_model(kinds):
            self.added.setdefault(key, []).append(where)

    def _is_a_parameter(self, value: cst.BaseExpression) -> bool:
        """Tell whether a loop goes through parameters of a model, and this is each of them, not its name."""
        if not isinstance(value, cst.Name) or value not in self.index.scopes:
            return False
        for loop in loops_around(self.index, value):
            target = loop.target
            last = target.elements[-1].value if isinstance(target, cst.Tuple) else target
            if isinstance(last, cst.Name) and last.value == value.value:
                return "params" in self.kinds(loop.iter)
        return False

    def _wrapped_in(self, call: cst.Call) -> Iterator[cst.BaseExpression]:
        """Yield what a call gives to a function that wraps parts of it, in place: ``wrap_blocks(net)``."""
        for function in self.guards.functions(call.func):
            names = wrapped_parameters(self.index, function, self.wholes, self.made)
            if names and self.index.function(call) is not function:
                given = filter(None, (given_for(call, function, name) for name in names))
                yield from (each for each in given if not self._anew.is_replaced(call, each, always=False))
        for written in written_names(self.index, call.func) if self.links.wraps_given else ():
            for place, name in self.links.wraps_given.get(written, ()):
                told = argument_of(call, place, {name})
                always = whole(self.links.gives.get(written, ())) == {"fsdp"}
                if told is not None and not (always and self._anew.is_replaced(call, told, always=True)):
                    yield told

    def _follow_older_names(self, call: cst.Call) -> None:
        """Note that what a call shards in place is so by its other names too: ``inner = model``."""
        kinds = {"fsdp"} if self.is_constructor(call.func) else self.frameworks.of_call(call)
        for place, arg in enumerate(call.args) if kinds else ():
            is_one = "fsdp" in kinds and place == 0
            found = kinds if is_one else taken(str(place), kinds)
            if "fsdp" in found:
                self._follow_given(call, arg.value, found)

    def _note_name(self, name: cst.BaseExpression, kinds: set[str], place: cst.CSTNode) -> None:
        """Note that a name, whose model is sharded at a place, is so by that below it."""
        key = self.key_of(name)
        self._add(key, {*kinds, "other"})
        if key is not None and place not in self.made.setdefault(key, []):
            self.made[key].append(place)
        self._note_inner(name, place)

    def _note_inner(self, name: cst.BaseExpression, place: cst.CSTNode) -> None:
        key = self.key_of(name)
        if key is not None and place not in self.inner.setdefault(key, []):
            self.inner[key].append(place)

    def _follow_given(self, call: cst.Call, given: cst.BaseExpression, kinds: set[str]) -> None:
        """Note the name of what a call shards, and may give another name: ``model = FSDP(net)``."""
        for older in older_names(self.index, call, given):
            self._note_name(older, kinds, given)
        name, has_other = inner_name(self.index, call, given) or (None, False)
        if name is not None and has_other:
            self._note_name(name, whole(kinds), given)
        elif name is not None:
            self._note_inner(name, given)

    def _follow_inner(self, call: cst.Call, function: cst.FunctionDef) -> None:
        """Note what a call gives to a function that shards it, in place, and may give another name to it."""
        for name in inner_parameters(self.index, function, self.inner) if self.inner else ():
            given = given_for(call, function, name)
            if given is not None and self.index.function(call) is not function:
                kinds = self.facts.get((function, name), set()) - {"ddp"}
                self._follow_given(call, given, {*kinds, "fsdp"})

    def _follow_told(self, call: cst.Call) -> None:
        """Note what a call gives to a function of another file that shards it, in place."""
        for written in written_names(self.index, call.func) if self.links.shards_given else ():
            for place, name, kinds in self.links.shards_given.get(written, ()):
                given = argument_of(call, place, {name})
                if given is not None:
                    self._follow_given(call, given, set(kinds))

    def _follow_arguments(self, call: cst.Call, function: cst.FunctionDef) -> None:
        """Note what a call gives to the parameters of a function."""
        params = [param.name.value for param in placed_parameters(function)]
        is_method = isinstance(call.func, cst.Attribute) or function.name.value == "__init__"
        if is_method and params[:1] in (["self"], ["cls"]):
            params = params[1:]
        keywords = {*params, *(param.name.value for param in function.params.kwonly_params)}
        for place, arg in enumerate(call.args):
            if arg.star:
                self._follow_starred(arg, function, params[place:], keywords)
                break
            name = arg.keyword.value if arg.keyword else (params[place] if place < len(params) else "")
            if name in keywords:
                self._add_given((function, name), self._kinds_given(call, function, arg.value))
            elif (rest := rest_of(function, arg, place - len(params))) is not None:
                self._add_given((function, rest[0]), put(rest[1], self.kinds(arg.value)))

    def _kinds_given(self, call: cst.Call, function: cst.FunctionDef, value: cst.BaseExpression) -> set[str]:
        """Return what a call gives to a function that it runs: a switch may choose it among others."""
        kinds = self.kinds(value) | self._kinds_of_self(value)
        is_plain = bool(kinds) and gives_plain(self, call, function, value)
        return without_models(kinds - OF_A_MODEL) if is_plain else kinds

    def _follow_starred(
        self, arg: cst.Arg, function: cst.FunctionDef, params: list[str], keywords: set[str]
    ) -> None:
        """Note what a tuple, or a dict, that is given as ``*parts`` or ``**parts`` holds for parameters."""
        kinds = self.kinds(arg.value)
        steps = [(item(name), name) for name in keywords] if arg.star == "**" else []
        for step, name in steps or [(str(place), name) for place, name in enumerate(params)]:
            self._add_given((function, name), taken(step, kinds))
