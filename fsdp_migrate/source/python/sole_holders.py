"""The one name that holds what FSDP1 made here: where it is None, nothing is sharded yet, or ever."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.python.nodes import dotted, last_name, text_of, walk_for


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.scopes import Index


_ASK = frozenset({"isinstance", "issubclass", "hasattr", "getattr"})
_MISSING = frozenset({"ImportError", "ModuleNotFoundError"})
_WRAP = frozenset({"auto_wrap", "enable_wrap", "fully_shard", "wrap"})


@dataclass(frozen=True, eq=False)
class SoleHolder:
    """An attribute of ``self``, or a name, that all FSDP1 models of a source are put into."""

    index: Index
    text: str
    places: tuple[cst.CSTNode, ...]
    """Where it is given a model."""
    _leading: dict[str, bool] = field(default_factory=dict, repr=False)

    def is_none(self, test: cst.BaseExpression, node: cst.CSTNode, *, truth: bool) -> bool:
        """Tell whether a test that is ``truth`` says that it is None, and it is so at a place below yet."""
        if not self._says_none(test, truth=truth) or not self._is_its(test, node):
            return False
        order, function = self.index.order, self.index.function(node)
        start, end = order[test], order[node]
        between = (each for each in self.places if start < order[each] < end)
        if any(self.index.function(each) is function for each in between):
            return False
        calls = (cst.ensure_type(each, cst.Call) for each in self.index.by_kind.get(cst.Call, ()))
        return not any(
            self._leads(last_name(call.func))
            for call in calls
            if start < order[call] < end and self.index.function(call) is function
        )

    def _says_none(self, test: cst.BaseExpression, *, truth: bool) -> bool:
        if not isinstance(test, cst.Comparison):
            return not truth and text_of(test) == self.text
        if len(test.comparisons) != 1 or text_of(test.left) != self.text:
            return False
        asked = test.comparisons[0]
        kinds = (cst.Equal, cst.Is) if truth else (cst.IsNot, cst.NotEqual)
        return text_of(asked.comparator) == "None" and isinstance(asked.operator, kinds)

    def _is_its(self, test: cst.BaseExpression, node: cst.CSTNode) -> bool:
        """Tell whether the name that is asked about is the one that gets the models, in that class."""
        place = self.places[0]
        if self.text.startswith("self."):
            return self.index.class_of(node) is self.index.class_of(place)
        return self.index.function(test) is self.index.function(place)

    def _leads(self, name: str) -> bool:
        """Tell whether a function of this source gives it a model, or calls one that does."""
        if name not in self._leading:
            self._leading[name] = False  # what calls itself adds nothing
            self._leading[name] = any(map(self._gives, self._functions(name)))
        return self._leading[name]

    def _gives(self, function: cst.FunctionDef) -> bool:
        if any(function in self.index.ancestors(each) for each in self.places):
            return True
        calls = (cst.ensure_type(each, cst.Call) for each in self.index.by_kind.get(cst.Call, ()))
        inner = (each for each in calls if self.index.function(each) is function)
        return any(self._leads(last_name(each.func)) for each in inner)

    def _functions(self, name: str) -> Iterator[cst.FunctionDef]:
        for each in self.index.by_kind.get(cst.FunctionDef, ()):
            function = cst.ensure_type(each, cst.FunctionDef)
            if function.name.value == name:
                yield function


def absent_names(index: Index) -> frozenset[str]:
    """Return the names that are false where FSDP cannot be imported: set so where the import fails."""
    found = set[str]()
    for node in index.by_kind.get(cst.Try, ()):
        tried = cst.ensure_type(node, cst.Try)
        imports = [
            each
            for each in walk_for(tried.body, cst.ImportFrom)
            if each.module is not None and "fsdp" in text_of(each.module)
        ]
        if not imports:
            continue
        for handler in tried.handlers:
            if handler.type is not None and text_of(handler.type) in _MISSING:
                for assign in walk_for(handler, cst.Assign):
                    if text_of(assign.value) == "False":
                        found |= {text_of(each.target) for each in assign.targets}
    assigns = (cst.ensure_type(each, cst.Assign) for each in index.by_kind.get(cst.Assign, ()))
    otherwise = {
        text_of(target.target)
        for each in assigns
        if text_of(each.value) not in {"False", "True"}
        for target in each.targets
    }
    return frozenset(found - otherwise)


def sole_holder(index: Index) -> SoleHolder | None:
    """Return what holds every FSDP1 model that a source makes, and is None before; None if it is not seen."""
    calls = [cst.ensure_type(each, cst.Call) for each in index.by_kind.get(cst.Call, ())]
    makers = [call for call in calls if index.fsdp1(call.func) == catalog.FSDP]
    if not makers or _is_wrapped_otherwise(index, calls):
        return None
    targets = [target for call in makers for target in _targets(index, call, calls)]
    held = {text_of(each.target) for each in targets}
    if not all(_targets(index, call, calls) for call in makers):
        return None
    for text in sorted(held):
        places = tuple(each for each in targets if text_of(each.target) == text)
        is_each = all(any(t in places for t in _targets(index, call, calls)) for call in makers)
        if is_each and _is_one(index, places) and _is_none_before_alone(index, text, places):
            return SoleHolder(index, text, places)
    return None


def _targets(index: Index, call: cst.Call, calls: list[cst.Call], depth: int = 0) -> list[cst.AssignTarget]:
    """Return what gets a model, also by the function that returns it; none if a call keeps it nowhere."""
    above = index.parents[call]
    if isinstance(above, cst.Assign):
        return [each for each in above.targets if isinstance(each.target, (cst.Attribute, cst.Name))]
    function = index.function(call)
    if not isinstance(above, cst.Return) or function is None or depth:
        return []
    asked = [each for each in calls if last_name(each.func) == function.name.value]
    found = [_targets(index, each, calls, depth + 1) for each in asked]
    return [target for each in found for target in each] if found and all(found) else []


def _is_wrapped_otherwise(index: Index, calls: list[cst.Call]) -> bool:
    """Tell whether a source may shard by more than FSDP1's call: its class is given away, or ``wrap``."""
    for call in calls:
        name = last_name(call.func)
        if name in _WRAP and index.qualified(call.func):
            return True
        if name not in _ASK and any(index.fsdp1(arg.value) == catalog.FSDP for arg in call.args):
            return True
    assigns = (cst.ensure_type(each, cst.Assign) for each in index.by_kind.get(cst.Assign, ()))
    return any(index.fsdp1(each.value) == catalog.FSDP for each in assigns if not _is_call(each.value))


def _is_call(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Call)


def _is_one(index: Index, places: tuple[cst.AssignTarget, ...]) -> bool:
    """Tell whether all are one attribute of one class, or one name of one function."""
    if isinstance(places[0].target, cst.Attribute):
        owners = {index.class_of(each) for each in places}
        return len(owners) == 1 and None not in owners and text_of(places[0].target).startswith("self.")
    return len({index.function(each) for each in places}) == 1


def _is_none_before_alone(index: Index, text: str, places: tuple[cst.AssignTarget, ...]) -> bool:
    """Tell whether a name is None at first, and never again: a model may be sharded that it holds no more."""
    last = text.rsplit(".", 1)[-1]
    is_none_first = False
    for each in index.by_kind.get(cst.Assign, ()):
        assign = cst.ensure_type(each, cst.Assign)
        for target, value in _pairs(assign):
            named = dotted(target) or ""
            if named.rsplit(".", 1)[-1] != last or any(each in places for each in assign.targets):
                continue
            if "." not in text and index.function(assign) is not index.function(places[0]):
                continue
            if text_of(value) != "None" or not _is_first(index, assign, places):
                return False
            is_none_first |= named == text
    return is_none_first


def _is_first(index: Index, assign: cst.Assign, places: tuple[cst.AssignTarget, ...]) -> bool:
    function = index.function(assign)
    if function is not None and function.name.value == "__init__":
        return all(
            index.order[assign] < index.order[each] for each in places if index.function(each) is function
        )
    loops = (cst.For, cst.While)
    is_once = not any(isinstance(each, loops) for each in index.ancestors(assign))
    is_here = all(index.function(each) is function for each in places)
    return is_here and is_once and all(index.order[assign] < index.order[each] for each in places)


def _pairs(assign: cst.Assign) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression]]:
    for each in assign.targets:
        target, value = each.target, assign.value
        if isinstance(target, cst.Tuple) and isinstance(value, cst.Tuple):
            yield from ((t.value, v.value) for t, v in zip(target.elements, value.elements, strict=False))
        elif isinstance(target, cst.Tuple):
            yield from ((t.value, value) for t in target.elements)
        else:
            yield target, value


def name_of_none(test: cst.BaseExpression, *, truth: bool) -> cst.Name | None:
    """Return the name that a test that is ``truth`` says to be None."""
    if not isinstance(test, cst.Comparison) or len(test.comparisons) != 1:
        return None
    operator, other = test.comparisons[0].operator, test.comparisons[0].comparator
    if text_of(other) != "None" or not isinstance(operator, cst.Is if truth else cst.IsNot):
        return None
    return test.left if isinstance(test.left, cst.Name) else None
