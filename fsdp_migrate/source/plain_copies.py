"""Plain tensors by the names of whole parameters: of a model before it is sharded, or of its full state.

``masks = {n: torch.ones_like(p) for n, p in net.named_parameters()}``: after ``model = FSDP(net)`` torch
refuses them beside the model's parameters, whose names are these now.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import libcst as cst

from fsdp_migrate.source.answers import Answers
from fsdp_migrate.source.loaded_elsewhere import LOADS, PICKS
from fsdp_migrate.source.parameter_values import WEIGHTS
from fsdp_migrate.source.parts_of_objects import given_to_method
from fsdp_migrate.source.plain_tensors import met
from fsdp_migrate.source.python.containers import is_slice
from fsdp_migrate.source.python.last_values import last_value, values_set
from fsdp_migrate.source.python.loops import binds, loops_around
from fsdp_migrate.source.python.nodes import dotted, last_name, placed_parameters, text_of, walk_for
from fsdp_migrate.source.python.object_fields import classes, init_of
from fsdp_migrate.source.python.parameters import SAME_PARAMETERS
from fsdp_migrate.source.python.wrapped_in_place import given_for
from fsdp_migrate.source.tensor_parts import inner_of, parts_of


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fsdp_migrate.source.parameter_values import Filling, ParameterValues

    Ask = Callable[[cst.BaseExpression], bool]


COPIES: Final = (
    "a plain tensor, from before sharding, of the full state or of a file, meets a DTensor here, "
    "which torch refuses: take .full_tensor() of the parameter, on every rank, or, where the parameter is "
    "changed, give it torch.distributed.tensor.distribute_tensor(it, p.device_mesh, p.placements). "
    "A file's part of a flat parameter of FSDP1 fits none: load the whole model's state."
)
_DEEPEST: Final = 8
_COPIES: Final = frozenset({"copy", "deepcopy"})
_LISTS = (cst.ListComp, cst.GeneratorExp, cst.SetComp)
_NAMED: Final = frozenset({"items", "named_parameters"})
_PICKS: Final = frozenset({"get", "pop", "setdefault"})
_READS_NAMES: Final = "get_parameter_names"


class _Taken(NamedTuple):
    """What a loop gives a name: of ``for n, p in masks.items()`` the first is a key of the dict, no value."""

    over: cst.BaseExpression
    is_key: bool


def met_copies(values: ParameterValues) -> Iterator[cst.CSTNode]:
    """Yield where such a tensor meets a parameter of the sharded model."""
    return met(values, PlainCopies(values).is_one)


@dataclass(eq=False)
class PlainCopies:
    """Answers for one source what holds such tensors, and such names. Reads only."""

    values: ParameterValues
    _answers: Answers = field(default_factory=lambda: Answers(_DEEPEST), repr=False)

    def is_one(self, node: cst.BaseExpression) -> bool:
        """Tell whether an expression is such a tensor."""
        while (inner := inner_of(self.values.source, node)) is not None:
            node = inner
        if isinstance(node, (cst.BinaryOperation, cst.Call, cst.Comparison)):
            parts = list(parts_of(self.values.source, node))
            if any(map(self._once_one, parts)):
                return not any(map(self.values.is_one, parts))
        if isinstance(node, cst.Call):
            func = node.func
            is_picked = isinstance(func, cst.Attribute) and func.attr.value in _PICKS
            return is_picked and self._once(cst.ensure_type(func, cst.Attribute).value, self.is_table)
        if isinstance(node, cst.Subscript):
            is_item = (
                self.is_of_a_file(node)
                or self._once(node.value, self.is_table)
                or self._once(node.value, self.is_list)
            )
            return is_item and not is_slice(node)
        if isinstance(node, cst.Attribute):
            return node.attr.value in WEIGHTS and self._is_before_sharding(node.value)
        if not isinstance(node, cst.Name) or node not in self.values.source.index.scopes:
            return False
        taken = self._taken(node)
        if taken is None:
            return self._stands_for(node, self.is_one)
        return not taken.is_key and self._once(taken.over, self.is_list)

    def is_list(self, node: cst.BaseExpression) -> bool:
        """Tell whether an expression is a list of such tensors, one after another."""
        if isinstance(node, _LISTS):
            return self._once_one(node.elt)
        if isinstance(node, (cst.Name, cst.Call, cst.Subscript)) and self.is_of_a_file(node):
            return True
        if isinstance(node, (cst.Name, cst.Attribute)):
            return self._is_filled(node, is_table=False) or self._stands_for(node, self.is_list)
        if not isinstance(node, cst.Call):
            return False
        func = node.func
        if isinstance(func, cst.Attribute) and func.attr.value in {"values", *_NAMED, "parameters"}:
            if func.attr.value in {"items", "values"}:
                return self._once(func.value, self.is_table)
            return self._is_before_sharding(func.value)
        return self._is_of_the_same(node, self.is_list)

    def is_of_a_file(self, node: cst.BaseExpression) -> bool:
        """Tell whether it is what ``torch.load`` gives, or an item of it: ``torch.load(path)["weights"]``.

        Also by functions, of other files too, that return it, or that are given it.
        """
        root = _root_of(node)
        source = self.values.source
        if isinstance(root, cst.Call):
            return LOADS in source.index.qualified(root.func) or self._gives_a_file(root)
        if not isinstance(root, cst.Name) or root not in source.index.scopes:
            return False
        held = last_value(source.index, root)
        if held is not None:
            return self._once(held, self.is_of_a_file)
        bindings = source.index.scopes[root].lookup(root.value)
        if len(bindings) != 1 or bindings[0].kind != "param":
            return False
        given = (*self._given(root), *given_to_method(source, root))
        return self._is_given_one(root) or any(self._once(each, self.is_of_a_file) for each in given)

    def _gives_a_file(self, call: cst.Call) -> bool:
        """Tell whether a function that is called returns what ``torch.load`` gives."""
        source = self.values.source
        functions = source.models.guards.functions(call.func)
        returned = (each.value for f in functions for each in walk_for(f.body, cst.Return))
        if functions:
            return any(each is not None and self._once(each, self.is_of_a_file) for each in returned)
        names = {name.rpartition(".")[2] for name in source.index.qualified(call.func)}
        return not names.isdisjoint(source.links.gives_files)

    def _is_given_one(self, name: cst.Name) -> bool:
        """Tell whether other files give a function's argument what ``torch.load`` gives."""
        source = self.values.source
        function = source.index.function(name)
        if function is None or not source.links.given_files:
            return False
        placed = [each.name.value for each in placed_parameters(function)]
        placed = [each for each in placed if each not in {"self", "cls"}]
        told = [each[1:] for each in source.links.given_files if each[0] == function.name.value]
        is_placed = name.value in placed and (placed.index(name.value), "") in told
        return is_placed or (-1, name.value) in told

    def is_table(self, node: cst.BaseExpression) -> bool:
        """Tell whether an expression is a dict of such tensors."""
        if isinstance(node, cst.DictComp):
            return self._once_one(node.value)
        if isinstance(node, (cst.Name, cst.Call, cst.Subscript)) and self.is_of_a_file(node):
            return True
        if isinstance(node, (cst.Name, cst.Attribute)):
            return self._is_filled(node, is_table=True) or self._stands_for(node, self.is_table)
        if not isinstance(node, cst.Call):
            return False
        func, given = node.func, [arg.value for arg in node.args]
        if isinstance(func, cst.Attribute) and func.attr.value == "state_dict":
            return self._is_before_sharding(func.value) or self._is_full(node)
        if given and dotted(func) == "dict" and isinstance(given[0], cst.Call):
            named = given[0].func
            is_named = isinstance(named, cst.Attribute) and named.attr.value in _NAMED
            return is_named and self.is_list(given[0])
        return self._is_of_the_same(node, self.is_table)

    def holds_names(self, node: cst.BaseExpression) -> bool:
        """Tell whether an expression holds the names of such tensors: a list of texts, or a dict's keys."""
        if isinstance(node, _LISTS):
            return self._is_name(node.elt)
        if isinstance(node, cst.DictComp):
            return self._is_name(node.key)
        if isinstance(node, (cst.Name, cst.Attribute)):
            is_filled = any(self._is_name(each.key or each.value) for each in self._put(node))
            return is_filled or self._stands_for(node, self.holds_names)
        if not isinstance(node, cst.Call):
            return False
        func = node.func
        if isinstance(func, cst.Attribute) and func.attr.value == "keys":
            return self._once(func.value, self.holds_names)
        if last_name(func) == _READS_NAMES and node.args:
            return self._is_before_sharding(node.args[0].value)
        return self.is_table(node) or self._is_of_the_same(node, self.holds_names)

    def _is_name(self, node: cst.BaseExpression) -> bool:
        taken = self._taken(node) if isinstance(node, cst.Name) else None
        if taken is None:
            return False
        if not taken.is_key:  # `for n in net.state_dict()`
            return self._once(taken.over, self.holds_names)
        return self.is_list(taken.over) or self._once(taken.over, self.holds_names)

    def _once(self, node: cst.BaseExpression, ask: Ask) -> bool:
        return self._answers.once(node, ask)

    def _once_one(self, node: cst.BaseExpression) -> bool:
        return self._once(node, self.is_one)

    def _is_of_the_same(self, call: cst.Call, ask: Ask) -> bool:
        """Tell whether a call gives what it is given, in another form: ``list(x)``, ``deepcopy(x)``."""
        last = last_name(call.func)
        if isinstance(call.func, cst.Attribute) and last == "copy" and not call.args:
            return self._once(call.func.value, ask)
        is_same = last in SAME_PARAMETERS | _COPIES
        return is_same and any(self._once(arg.value, ask) for arg in call.args)

    def _stands_for(self, node: cst.Name | cst.Attribute, ask: Ask) -> bool:
        """Tell whether what a name or an attribute holds here is such."""
        index = self.values.source.index
        if isinstance(node, cst.Attribute):
            held_here = list(values_set(index, node))
            if any(map(self.values.is_many, held_here)):
                # A file takes the place of copies of parameters: that is said where it is loaded.
                held_here = [each for each in held_here if not self.is_of_a_file(each)]
            return any(self._once(each, ask) for each in held_here)
        if node not in index.scopes:
            return False
        held = last_value(index, node)
        if held is not None:
            return self._once(held, ask)
        bindings = index.scopes[node].lookup(node.value)
        is_given = len(bindings) == 1 and bindings[0].kind == "param"
        return is_given and any(self._once(each, ask) for each in self._given(node))

    def _given(self, name: cst.Name) -> Iterator[cst.BaseExpression]:
        """Yield what calls of this source give to a function's parameter."""
        function = self.values.source.index.function(name)
        for call in self._callers.get(function, ()) if function is not None else ():
            given = given_for(call, function, name.value) if function is not None else None
            yield from () if given is None else (given,)

    @functools.cached_property
    def _callers(self) -> dict[cst.FunctionDef, list[cst.Call]]:
        source, found = self.values.source, dict[cst.FunctionDef, list[cst.Call]]()
        for call in source.calls:
            made = (init_of(each) for each in classes(source.index, call.func))
            for function in (*source.models.guards.functions(call.func), *filter(None, made)):
                found.setdefault(function, []).append(call)
        return found

    def _taken(self, name: cst.Name) -> _Taken | None:
        for loop in loops_around(self.values.source.index, name):
            if binds(loop, name.value):
                return _taken_by(loop.target, loop.iter, name.value)
        return None

    def _put(self, node: cst.Name | cst.Attribute) -> list[Filling]:
        """Return what is put into a list or a dict, one by one."""
        key = self.values.source.models.key_of(node) if node in self.values.source.index.scopes else None
        put = self.values.fillings.get(key, ()) if key is not None else ()
        return [each for each in put if not each.is_many]

    def _is_filled(self, node: cst.Name | cst.Attribute, *, is_table: bool) -> bool:
        put = self._put(node)
        return any((each.key is not None) is is_table and self._once_one(each.value) for each in put)

    def _is_before_sharding(self, model: cst.BaseExpression) -> bool:
        """Tell whether a model is seen to be sharded further down, and so is plain here."""
        source, text = self.values.source, text_of(model)
        if self.values.is_sharded(model) or model not in source.index.scopes:
            return False
        if source.models.is_before_wrapping(model):
            return True
        below = (call for call in source.calls if source.index.order[call] > source.index.order[model])
        given = (call for call in below if call.args and text_of(call.args[0].value) == text)
        return any(
            source.models.is_constructor(call.func)
            and source.index.function(call) is source.index.function(model)
            and not source.index.excludes(model, call)
            for call in given
        )

    def _is_full(self, call: cst.Call) -> bool:
        """Tell whether a sharded model is asked for its full state, which is plain under FSDP2 as well."""
        source = self.values.source
        if source.models.certainty(cst.ensure_type(call.func, cst.Attribute).value) != "certain":
            return False
        around = source.contexts.around(call)
        settings = around.settings if around is not None else source.contexts.settings_at(call)
        return settings is not None and settings.kind == "full" and not source.contexts.is_summoned(call)


def _root_of(node: cst.BaseExpression) -> cst.BaseExpression:
    """Return what items are taken of: ``saved`` of ``saved["ema"].get("weights")[0]``."""
    while True:
        if isinstance(node, cst.Subscript):
            node = node.value
        elif (
            isinstance(node, cst.Call)
            and isinstance(node.func, cst.Attribute)
            and node.func.attr.value in PICKS
        ):
            node = node.func.value
        else:
            return node


def _taken_by(target: cst.BaseExpression, over: cst.BaseExpression, name: str) -> _Taken | None:
    """Return what a target's name takes of what a loop goes through, by way of ``zip`` and ``enumerate``."""
    places = [each.value for each in target.elements] if isinstance(target, (cst.Tuple, cst.List)) else []
    if not places:
        is_keys = isinstance(over, cst.Call) and (dotted(over.func) or "").endswith(".keys")
        return _Taken(over, is_keys) if text_of(target) == name else None
    call = over if isinstance(over, cst.Call) else None
    last = (dotted(call.func) or text_of(call.func)).split(".")[-1] if call is not None else ""
    given = [arg.value for arg in call.args] if call is not None else []
    if last == "zip":
        found = (_taken_by(place, each, name) for place, each in zip(places, given, strict=False))
        return next((each for each in found if each is not None), None)
    if last == "enumerate" and given and len(places) > 1:
        return _taken_by(places[1], given[0], name)
    if last in _NAMED and len(places) > 1:
        return _Taken(over, text_of(places[0]) == name) if name in map(text_of, places[:2]) else None
    if last in SAME_PARAMETERS | {"tqdm"} and given:
        return _taken_by(target, given[0], name)
    return None
