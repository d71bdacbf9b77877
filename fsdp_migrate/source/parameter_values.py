"""Which expressions are parameters of a sharded model, their gradients and values; one of them, or many."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.answers import Answers
from fsdp_migrate.source.lists_of_lists import ListsOfLists
from fsdp_migrate.source.parts_of_objects import (
    given_to_method,
    methods_of,
    property_of,
    set_in_class,
)
from fsdp_migrate.source.python.containers import added_to, is_slice
from fsdp_migrate.source.python.held import ITEM, TENSOR, taken, tensors, whole
from fsdp_migrate.source.python.last_values import last_value, stands_for, values_set
from fsdp_migrate.source.python.loops import binds, loops_around
from fsdp_migrate.source.python.nameless import given_to_nameless
from fsdp_migrate.source.python.nodes import dotted, last_name, parameters_of, text_of, walk_for, word_of
from fsdp_migrate.source.python.optimizers import STATE
from fsdp_migrate.source.python.parameters import PARAMETERS, SAME_PARAMETERS
from fsdp_migrate.source.tensor_parts import (
    given_in_branches,
    holds_the_same,
    inner_of,
    makes_plain,
    parts_of,
)


if TYPE_CHECKING:
    from collections.abc import Callable

    from fsdp_migrate.source.python.model_kinds import Key
    from fsdp_migrate.source.python.text import Source


WEIGHTS = frozenset({"bias", "weight"})
_OWN = re.compile(
    r"(^|_)(alpha|beta|bias|emb|embed|embedding|gamma|param|prompt|queries|query|scale|temp|temperature|token|w|weight)s?$"
)
_MODULES = frozenset({"children", "modules", "named_children", "named_modules"})
_ITEMS = frozenset({"items", "values"})
_OF_DTENSORS = frozenset({"DTensor", "_local_tensor", "full_tensor", "is_dtensor", "to_local"})
_COMPREHENSIONS = (cst.ListComp, cst.SetComp, cst.GeneratorExp)
_PUT_TOGETHER = (*_COMPREHENSIONS, cst.DictComp, cst.List, cst.Tuple, cst.Dict, cst.BinaryOperation)
_DEEPEST = 8


class Filling(NamedTuple):
    """What is put into a list or a dict."""

    key: cst.BaseExpression | None
    """Where, in a dict."""
    value: cst.BaseExpression
    is_many: bool
    """Whether it is all that is in that."""


@dataclass(eq=False)
class ParameterValues:
    """Answers for one source what holds parameters of a sharded model. Reads only."""

    source: Source
    _answers: Answers = field(default_factory=lambda: Answers(_DEEPEST), repr=False)
    """What is being looked at, and was: a list may be filled with what was taken of itself."""

    def is_one(self, node: cst.BaseExpression) -> bool:
        """Tell whether an expression is a parameter of a sharded model, its gradient, or its values."""
        while (inner := inner_of(self.source, node)) is not None:
            node = inner
        if isinstance(node, (cst.BinaryOperation, cst.Comparison, cst.Call)):
            is_made = any(map(self.is_one, parts_of(self.source, node)))
            return is_made or (isinstance(node, cst.Call) and self._is_called_for(node))
        if isinstance(node, cst.IfExp):
            return self._is_chosen(node, self.is_one)
        if isinstance(node, cst.Subscript):
            return self._is_item(node) or self._is_told(node)
        if isinstance(node, cst.Attribute):
            return self._is_weight(node) or self._is_told(node)
        if not isinstance(node, cst.Name) or node not in self.source.index.scopes:
            return False
        loops = [loop for loop in loops_around(self.source.index, node) if binds(loop, node.value)]
        kinds = self.source.models.kinds(node) if loops else set()
        if any(kind.endswith(STATE) for kind in kinds):
            return STATE in kinds  # and not the dict of them: `for state in optimizer.state.values()`
        if loops:
            is_of_one = any(
                (self._goes_through(_over(loop, node.value)) and _is_value_of(loop, node.value))
                or self._is_in_tuples(loop, node.value)
                for loop in loops
            )
            return is_of_one and not self.source.contexts.is_summoned(node)
        return self._is_held(node)

    def _is_called_for(self, call: cst.Call) -> bool:
        """Tell whether a call gives one: of many, or of a function here or in another file."""
        return self._is_taken(call) or self._gives(call, self.is_one) or self._is_told(call)

    def _is_chosen(self, node: cst.IfExp, ask: Callable[[cst.BaseExpression], bool]) -> bool:
        """Tell whether one of two is such, and none is taken apart: ``p.full_tensor() if is_one else p``."""
        words = {each.value for each in walk_for(node, cst.Name)}
        return _OF_DTENSORS.isdisjoint(words) and any(map(ask, (node.body, node.orelse)))

    def _is_item(self, node: cst.Subscript) -> bool:
        """Tell whether it is one of many, a part of one, or what an optimizer keeps for one."""
        if STATE in self.source.models.kinds(node):
            return word_of(node.slice[0]) != "step"  # a plain number
        if not isinstance(node.value, (cst.Name, cst.Attribute, cst.Call, cst.Subscript)):
            return self.is_one(node.value)
        is_item = not is_slice(node) and self._once(node.value, self.is_many)
        return is_item or self._once(node.value, self.is_one)

    def _is_taken(self, call: cst.Call) -> bool:
        """Tell whether a call gives one of many: ``next(model.parameters())``, ``model.get_parameter(n)``."""
        if isinstance(call.func, cst.Attribute) and call.func.attr.value == "get_parameter":
            return self.is_sharded(call.func.value) and not self.source.contexts.is_summoned(call)
        given = [arg.value for arg in call.args]
        if dotted(call.func) == "getattr" and len(given) > 1 and dotted(given[0]) != "self":
            is_named = isinstance(given[1], cst.SimpleString) and given[1].evaluated_value in WEIGHTS
            is_its = is_named and (_is_part(self.source, given[0]) or self.is_module_of_one(given[0]))
            return is_its and not self.source.contexts.is_summoned(call)
        return dotted(call.func) == "next" and bool(call.args) and self.is_many(call.args[0].value)

    def _is_weight(self, node: cst.Attribute) -> bool:
        """Tell whether it is a weight of a part of a sharded model: ``model.layers[0].weight``.

        What a module's methods take of ``self`` may be gathered there.
        """
        root: cst.BaseExpression = node.value
        while isinstance(root, (cst.Attribute, cst.Call, cst.Subscript)):
            if self.source.models.certainty(root) is not None:
                break
            root = root.func if isinstance(root, cst.Call) else root.value
        if node.attr.value not in WEIGHTS or dotted(root) == "self":
            return False
        is_its = self._is_of_part(node) or self.is_module_of_one(node.value)
        return is_its and not self.source.contexts.is_summoned(node)

    def is_own(self, node: cst.BaseExpression) -> bool:
        """Tell whether it may be a parameter that a model's class made by itself: ``model.logit_scale``."""
        is_named = isinstance(node, cst.Attribute) and _OWN.search(node.attr.value) is not None
        return is_named and self._is_of_part(cst.ensure_type(node, cst.Attribute))

    def _is_of_part(self, node: cst.Attribute) -> bool:
        """Tell whether it is an attribute of a sharded model, or of a part of one.

        Of what holds one, ``reward.model = FSDP(reward.model)``, the rest is plain.
        """
        return _is_part(self.source, node.value) and self.source.models.sharded_with(node) is not None

    def is_many(self, node: cst.BaseExpression) -> bool:
        """Tell whether it holds parameters: ``[p.grad for p in m.parameters()]``, a dict, a list to fill."""
        if isinstance(node, _COMPREHENSIONS):
            return self.is_one(node.elt)
        if isinstance(node, cst.DictComp):
            return self.is_one(node.value)
        if isinstance(node, (cst.List, cst.Tuple, cst.Set, cst.Dict)):
            stars = (cst.StarredElement, cst.StarredDictElement)
            return any(
                self.is_many(each.value) if isinstance(each, stars) else self.is_one(each.value)
                for each in node.elements
            )
        if isinstance(node, cst.IfExp):
            return self._is_chosen(node, self.is_many)
        if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Add):
            return self.is_many(node.left) or self.is_many(node.right)
        if isinstance(node, (cst.Name, cst.Attribute)):
            is_its = self.is_list(node) or self._is_filled(node) or self._holds_many(node)
            return is_its or self._is_a_list_of_one(node)
        if isinstance(node, cst.Call):
            func = node.func
            if isinstance(func, cst.Attribute) and func.attr.value in _ITEMS:
                return self.is_many(func.value)
            if last_name(func) in SAME_PARAMETERS:
                return any(self.is_many(arg.value) for arg in node.args)
            is_its = self.is_list(node) or self._gives(node, self.is_many)
            return is_its or self._is_told(node, is_many=True)
        is_its = self.is_list(node) or self._is_a_list_of_one(node)
        return is_its or self._is_told(node, is_many=True)

    def _is_a_list_of_one(self, node: cst.BaseExpression) -> bool:
        if isinstance(node, cst.Attribute):
            return any(self._once(each, self.is_many) for each in property_of(self.source, node))
        is_many = functools.partial(self._once, ask=self.is_many)
        return ListsOfLists(self.source, self.fillings, is_many).is_one(node)

    def _holds_many(self, node: cst.Name | cst.Attribute) -> bool:
        """Tell whether a name is given parameters in one piece: ``grads = [p.grad for p in ...]``."""
        if isinstance(node, cst.Name) and node not in self.source.index.scopes:
            return False
        kinds = (*_PUT_TOGETHER, cst.Call)
        # Of an attribute any: `self.kept = {}` in the constructor is filled by another method.
        index = self.source.index
        values: list[cst.BaseExpression | None] = []
        if isinstance(node, cst.Attribute):
            values += values_set(index, node)
        elif (last := last_value(index, node)) is not None:
            values += [last]
        else:
            values += given_in_branches(self.source, node)
        if any(isinstance(held, kinds) and self._once(held, self.is_many) for held in values):
            return True
        if isinstance(node, cst.Attribute):
            set_there = (self._once(each, self.is_many) for each in set_in_class(self.source, node))
            return any(set_there) or self._is_told(node, is_many=True)
        return self._is_given(node, self.is_many) or self._is_told(node, is_many=True)

    def _is_given(self, name: cst.Name, ask: Callable[[cst.BaseExpression], bool]) -> bool:
        """Tell whether a name is a function's argument, and a call here gives it such."""
        index, models = self.source.index, self.source.models
        bindings = index.scopes[name].lookup(name.value)
        # `if isinstance(x, Tensor): x = [x]`, `p = p.cpu()`: it holds what it was given all the same.
        anew = [each for each in bindings if each.kind != "param"]
        holds = (holds_the_same(self.source, each, name.value) for each in anew)
        is_given = len(bindings) == len(anew) + 1 and all(holds)
        nameless = given_to_nameless(index, name) if is_given and not anew else ()
        for each, is_in_it in nameless:
            if self._once(each, self.is_many if is_in_it else ask) and (ask == self.is_one or not is_in_it):
                return True
        given = (*stands_for(index, models.guards, name), *given_to_method(self.source, name))
        is_summoned = self.source.contexts.is_summoned
        return is_given and any(self._once(each, ask) and not is_summoned(each) for each in given)

    def _gives(self, call: cst.Call, ask: Callable[[cst.BaseExpression], bool]) -> bool:
        """Tell whether a function of this source returns such: ``def grads(m): return [p.grad for ...]``."""
        guards, index = self.source.models.guards, self.source.index
        called = (*guards.functions(call.func), *methods_of(self.source, call.func))
        functions = (each for each in called if not makes_plain(each))
        return any(
            self._once(given.value, ask)
            for function in functions
            if self._is_given_its_own(call, function)
            for given in walk_for(function.body, cst.Return)
            if given.value is not None and not isinstance(given.value, cst.Tuple)
            if index.function(given) is function
        )

    def _is_given_its_own(self, call: cst.Call, function: cst.FunctionDef) -> bool:
        """Tell whether a call itself gives a function a model or parameters, where it takes anything."""
        params = [each.name.value for each in parameters_of(function)]
        given = [arg.value for arg in call.args]
        return not set(params) - {"cls", "self"} or any(
            _is_part(self.source, each) or self._once(each, self.is_one) or self._once(each, self.is_many)
            for each in given
        )

    def _is_held(self, name: cst.Name) -> bool:
        """Tell whether a name holds one: ``g = p.grad``, or a function's argument of which calls give one."""
        held = last_value(self.source.index, name)
        if held is not None:
            return self._once(held, self.is_one)
        is_its = self._is_given(name, self.is_one) or self._is_told(name)
        return is_its or any(self._once(each, self.is_one) for each in given_in_branches(self.source, name))

    def _is_told(self, node: cst.BaseExpression, *, is_many: bool = False) -> bool:
        """Tell whether other files give it, or what it is called by, such a one, or a list of them."""
        kinds = tensors(self.source.models.kinds(node))
        is_its = TENSOR in (taken(ITEM, kinds) if is_many else kinds)
        if isinstance(node, cst.Name) and is_its:  # `grads = [g.full_tensor() for g in grads]`
            is_its = last_value(self.source.index, node) is None
        return is_its and not self.source.contexts.is_summoned(node)

    def _once(self, node: cst.BaseExpression, ask: Callable[[cst.BaseExpression], bool]) -> bool:
        return self._answers.once(node, ask)

    def _is_filled(self, node: cst.Name | cst.Attribute) -> bool:
        """Tell whether a list or a dict is filled with them, one by one or many at once."""
        key = self.source.models.key_of(node) if node in self.source.index.scopes else None
        put = self.fillings.get(key, ()) if key is not None else ()
        return any(self._once(value, self.is_many if is_many else self.is_one) for _, value, is_many in put)

    @functools.cached_property
    def fillings(self) -> dict[Key, list[Filling]]:
        """What is put into each list and dict."""
        found: dict[Key, list[Filling]] = {}

        def note(
            where: cst.BaseExpression,
            value: cst.BaseExpression,
            *,
            is_many: bool,
            at: cst.BaseExpression | None = None,
        ) -> None:
            key = self.source.models.key_of(where) if where in self.source.index.scopes else None
            if key is not None:
                found.setdefault(key, []).append(Filling(at, value, is_many))

        for call in self.source.calls:
            for where, step, value in added_to(call):
                note(where, value, is_many=not step)
        for node in self.source.index.by_kind.get(cst.AugAssign, ()):
            added = cst.ensure_type(node, cst.AugAssign)
            note(added.target, added.value, is_many=True)
        for assign in self.source.assignments:
            for target in assign.targets:
                if isinstance(target.target, cst.Subscript):
                    at = target.target.slice[0].slice
                    key = at.value if isinstance(at, cst.Index) else None
                    note(target.target.value, assign.value, is_many=False, at=key)
        return found

    def _goes_through(self, over: cst.BaseExpression) -> bool:
        if any(self.is_list(each) for kind in (cst.Call, cst.Subscript) for each in walk_for(over, kind)):
            return True
        if isinstance(over, cst.Call) and (
            self._gives(over, self.is_many) or self._is_told(over, is_many=True)
        ):
            return True
        if isinstance(over, (*_PUT_TOGETHER, cst.Subscript)) and self._once(over, self.is_many):
            return True
        if isinstance(over, (cst.Name, cst.Attribute)) and self._is_a_list_of_one(over):
            return True
        names = (each for kind in (cst.Name, cst.Attribute) for each in walk_for(over, kind))
        known = [each for each in names if each in self.source.index.scopes]
        return any(self.is_list(each) for each in known) or any(
            isinstance(each, (cst.Name, cst.Attribute)) and (self._is_filled(each) or self._holds_many(each))
            for each in known
        )

    def _is_in_tuples(self, loop: cst.For | cst.CompFor, name: str) -> bool:
        """Tell whether a loop goes through tuples that a list was filled with, and a name is one in them."""
        over, target = loop.iter, loop.target
        if not isinstance(over, (cst.Name, cst.Attribute)) or not isinstance(target, cst.Tuple):
            return False
        key = self.source.models.key_of(over) if over in self.source.index.scopes else None
        place = next((i for i, each in enumerate(target.elements) if text_of(each.value) == name), None)
        put = self.fillings.get(key, ()) if key is not None and place is not None else ()
        tuples = [value for _, value, is_many in put if isinstance(value, cst.Tuple) and not is_many]
        return any(
            place is not None
            and len(each.elements) == len(target.elements)
            and self._once(each.elements[place].value, self.is_one)
            for each in tuples
        )

    def is_list(self, node: cst.BaseExpression) -> bool:
        """Tell whether an expression is ``model.parameters()`` of a sharded model."""
        if isinstance(node, cst.Attribute) and node.attr.value == "_parameters":
            return self.is_sharded(node.value) or self.is_module_of_one(node.value)
        if isinstance(node, (cst.Name, cst.Attribute, cst.Subscript)):
            return self.source.models.is_parameters(node)
        if not isinstance(node, cst.Call):
            return False
        if not isinstance(node.func, cst.Attribute) or node.func.attr.value not in PARAMETERS:
            return self.source.models.is_parameters(node)
        model = node.func.value
        is_its = self.is_sharded(model) or self.is_module_of_one(model)
        return is_its or self._holds_sharded(node, model)

    def _holds_sharded(self, call: cst.Call, model: cst.BaseExpression) -> bool:
        """Tell whether a module with a sharded one in it gives its parameters: ``Shell(FSDP(net))``.

        Of ``self`` others speak, and of a model by what it is at that place.
        """
        is_other = dotted(model) == "self" or whole(self.source.models.kinds(model)) & {"fsdp", "ddp"}
        if is_other or self.source.models.is_before_wrapping(model):
            return False
        return self.source.models.is_parameters(call)

    def is_sharded(self, model: cst.BaseExpression) -> bool:
        """Tell whether a model is sharded, or a part of one that is, as far as this source shows."""
        models = self.source.models
        is_fsdp1 = _is_part(self.source, model) or models.is_guarded_within(model)
        is_fsdp1 = is_fsdp1 or models.is_asked(model) or _is_wrapped_above(self.source, model)
        return is_fsdp1 or is_itself(self.source, model)

    def is_module_of_one(self, node: cst.BaseExpression) -> bool:
        """Tell whether a loop goes through a sharded model's modules: ``for m in model.modules()``."""
        if not isinstance(node, cst.Name) or node not in self.source.index.scopes:
            return False
        if self.source.models.is_before_wrapping(node):
            return False
        if any(each.kind == "param" for each in self.source.index.scopes[node].lookup(node.value)):
            return False  # of a hook, in which what it is given may be whole
        for loop in loops_around(self.source.index, node):
            over: cst.BaseExpression | None = loop.iter
            if isinstance(over, cst.Name) and over in self.source.index.scopes:
                over = last_value(self.source.index, over)
            func = over.func if isinstance(over, cst.Call) and binds(loop, node.value) else None
            if (
                isinstance(func, cst.Attribute)
                and func.attr.value in _MODULES
                and self.is_sharded(func.value)
            ):
                return True
        return False


def _over(loop: cst.For | cst.CompFor, name: str) -> cst.BaseExpression:
    """Return what a loop takes a name from: the list at its place in ``for a, b in zip(xs, ys)``."""
    over, places = loop.iter, loop.target
    if isinstance(over, cst.Call) and dotted(over.func) == "zip" and isinstance(places, cst.Tuple):
        for place, arg in zip(places.elements, over.args, strict=False):
            if any(each.value == name for each in walk_for(place, cst.Name)):
                return over if arg.star else arg.value
    return over


def _is_value_of(loop: cst.For | cst.CompFor, name: str) -> bool:
    names = [each.value for each in walk_for(loop.target, cst.Name)]
    # Of `for name, parameter in ...` the first is a text.
    text = text_of(loop.iter)
    named = ("named_parameters" in text or ".items()" in text) and len(names) > 1
    return name in (names[1:] if named else names)


def _is_part(source: Source, model: cst.BaseExpression) -> bool:
    """Tell whether it is a sharded model, or a part of one: ``model.decoder``."""
    part: cst.BaseExpression | None = model
    if isinstance(model, cst.Name) and source.models.is_before_wrapping(model):
        return False  # one of a loop that shards each: `module = FSDP(module)` stands below
    while part is not None and not source.models.is_other_branch(part):
        if source.models.certainty(part) is not None:
            return True
        part = source.models.sharded_with(part)
    return False


def _is_wrapped_above(source: Source, model: cst.BaseExpression) -> bool:
    """Tell whether it is the name that a model had before the same function wrapped it: ``m = FSDP(net)``."""
    if source.models.is_before_wrapping(model):
        return False
    text, place = text_of(model), source.index.order.get(model, 0)
    for call in source.calls:
        if source.index.order[call] >= place or source.index.excludes(call, model):
            continue
        is_its = call.args and not call.args[0].star and text_of(call.args[0].value) == text
        if is_its and source.models.is_constructor(call.func):
            return source.index.function(call) is source.index.function(model)
    return False


def is_itself(source: Source, model: cst.BaseExpression) -> bool:
    """Tell whether it is ``self`` in a method that a sharded model is asked for, here or in another file."""
    function = source.index.function(model)
    if function is None or dotted(model) != "self":
        return False
    name = function.name.value
    if name in source.models.links.methods:
        return True
    asked = (call.func for call in source.calls if isinstance(call.func, cst.Attribute))
    return name not in catalog.OF_MODULES and any(
        func.attr.value == name and source.models.certainty(func.value) is not None for func in asked
    )
