"""Where the switch that decides on the wrapping is off: below ``else`` of one that wraps."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import libcst as cst

from fsdp_migrate.source.python.accelerators import is_accelerator, is_one
from fsdp_migrate.source.python.fabric_models import FABRICS
from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.nodes import dotted, last_name, text_of, walk_for
from fsdp_migrate.source.python.wrapped_in_place import given_for


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fsdp_migrate.source.python.guards import Guards
    from fsdp_migrate.source.python.scopes import Index


_FALSE = frozenset({"0", "False", "None"})
_LOOPS = (cst.For, cst.While, cst.CompFor)
_TESTS = (cst.Attribute, cst.BooleanOperation, cst.Comparison, cst.Name, cst.UnaryOperation)
_DEEPEST = 2
_PREPARES = frozenset({"prepare", "prepare_model", "setup", "setup_module"})
_EARLY = frozenset({"__init__", "setup"})
# Calls that say the same each time: what others say may change in between.
_STEADY = frozenset({"bool", "get", "getattr", "hasattr", "int", "is_available", "is_initialized", "len"})
_STEADY_NAMES = frozenset({"device_count", "get_world_size", "lower", "str", "strip", "upper"})
STEADY = _STEADY | _STEADY_NAMES


def contradict(one: tuple[str, str | None, bool], other: tuple[str, str | None, bool]) -> bool:
    """Tell whether two facts cannot both hold: what is asked, the constant that it equals, and the truth.

    Example:
        >>> contradict(("mode", "'fsdp'", True), ("mode", "'ddp'", True))
        True
    """
    (asked, constant, truth), (asked_too, constant_too, truth_too) = one, other
    if asked != asked_too:
        return False
    if constant == constant_too:
        return truth is not truth_too
    if constant is None or constant_too is None:
        plain, equal = (one, other) if constant is None else (other, one)
        return equal[2] and plain[2] is (equal[1] in _FALSE)
    return truth and truth_too


class Fact(NamedTuple):
    """What is known at a place: that something is true or not, or equals a constant or not."""

    asked: str
    constant: str | None
    truth: bool
    test: cst.BaseExpression

    def rules_out(self, other: Fact) -> bool:
        """Tell whether both cannot hold of the same values."""
        return contradict(self[:3], other[:3])


@dataclass(eq=False)
class Switches:
    """Answers whether a place is reached only where no model was wrapped. Reads only."""

    index: Index
    guards: Guards
    _known: dict[cst.CSTNode, tuple[Fact, ...]] = field(default_factory=dict, repr=False)

    def is_off(self, node: cst.CSTNode, owner: cst.CSTNode, made: Sequence[cst.CSTNode]) -> bool:
        """Tell whether each wrapping runs only with a switch that is off where an expression stands.

        Args:
            node: The expression.
            owner: The class, function or module that its name belongs to.
            made: The targets of the assignments that make it a model.
        """
        here = self._facts(node) if made else ()
        return bool(here) and all(self._is_ruled_out(each, node, owner, here) for each in made)

    def contradicts(
        self, test: cst.BaseExpression, truth: bool, since: cst.CSTNode, node: cst.CSTNode
    ) -> bool:
        """Tell whether what is known at a place rules out what a test above it said, which still is so.

        Args:
            test: The test.
            truth: What it was there.
            since: The statement in which it was so.
            node: The place.
        """
        here = self._facts(node)
        there = [each for each in self._said(test, truth=truth) if _is_steady(each.test)] if here else []
        owner = self.index.function(node)
        if owner is not self.index.function(since):
            owner = None  # another method's: what keeps its value is the object's
        return any(
            one.rules_out(other)
            and self._is_same(one.test, other.test)
            and self._last((one.test, other.test), since, node, owner or since)
            for one in there
            for other in here
        )

    def _is_ruled_out(
        self, target: cst.CSTNode, node: cst.CSTNode, owner: cst.CSTNode, here: Sequence[Fact]
    ) -> bool:
        if self.index.excludes(target, node):
            return True
        there = (*self._facts(target), *self._of_value(target))

        def rules_out(other: Fact) -> bool:
            return any(
                one.rules_out(other)
                and self._is_same(one.test, other.test)
                and self._last((one.test, other.test), target, node, owner)
                for one in there
            )

        return any(
            rules_out(each)
            or (bool(sides := self._sides(each)) and all(any(map(rules_out, s)) for s in sides))
            for each in here
        )

    def _sides(self, fact: Fact) -> list[list[Fact]]:
        """Return what each side would say where one of two holds: of ``a or b``, or of ``not (a and b)``."""
        test = fact.test
        if not isinstance(test, cst.BooleanOperation) or isinstance(test.operator, cst.And) is fact.truth:
            return []
        said = (self._said(part, truth=fact.truth) for part in (test.left, test.right))
        return [[each for each in side if _is_steady(each.test)] for side in said]

    def _facts(self, node: cst.CSTNode) -> tuple[Fact, ...]:
        known = self._known.get(node)
        if known is None:
            facts = [
                each for test, truth in self.guards.facts(node) for each in self._said(test, truth=truth)
            ]
            known = self._known[node] = tuple(each for each in facts if _is_steady(each.test))
        return known

    def _said(self, test: cst.BaseExpression, *, truth: bool, depth: int = 0) -> Iterator[Fact]:
        """Yield what a test that is ``truth`` says, also by what a name in it holds: ``plain = not on``."""
        for fact in _split(test, truth=truth):
            yield fact
            name = fact.test
            is_known = isinstance(name, cst.Name) and name in self.index.scopes and depth < _DEEPEST
            value = last_value(self.index, name) if is_known and isinstance(name, cst.Name) else None
            if isinstance(value, _TESTS):
                yield from self._said(value, truth=fact.truth, depth=depth + 1)

    def _of_value(self, target: cst.CSTNode) -> Iterator[Fact]:
        """Yield what decides in the value that makes a model: ``FSDP(m) if on else m``, ``wrap(m)``."""
        above: cst.CSTNode | None = self.index.parents[target]
        while isinstance(above, (cst.BaseElement, cst.Tuple, cst.List)):  # `model, opt = prepare(model, opt)`
            above = self.index.parents.get(above)
        statement = self.index.parents.get(above) if above is not None else None
        value = statement.value if isinstance(statement, cst.Assign) else None
        framework = _framework(value, self.index)
        if framework is not None:
            yield Fact(text_of(framework), "None", truth=False, test=framework)
            yield Fact(text_of(framework), None, truth=True, test=framework)
        if above is not self.index.parents[target]:
            return
        if isinstance(value, cst.IfExp) and isinstance(value.orelse, (cst.Name, cst.Attribute)):
            yield from (each for each in _split(value.test, truth=True) if _is_steady(each.test))
        elif isinstance(value, cst.IfExp) and isinstance(value.body, (cst.Name, cst.Attribute)):
            yield from (each for each in _split(value.test, truth=False) if _is_steady(each.test))
        elif isinstance(value, cst.Call):
            functions = list(self.guards.functions(value.func))
            given = walk_for(functions[0].body, cst.Return) if len(functions) == 1 else ()
            wrapping = [each for each in given if not isinstance(each.value, (cst.Name, type(None)))]
            for fact in self._facts(wrapping[0]) if len(wrapping) == 1 else ():
                yield _as_given(fact, value, functions[0]) or fact

    def _is_framework(self, test: cst.BaseExpression) -> bool:
        above = self.index.parents.get(test)
        call = self.index.parents.get(above) if isinstance(above, cst.Attribute) else None
        return _framework(call, self.index) is test

    def _is_same(self, one: cst.BaseExpression, other: cst.BaseExpression) -> bool:
        """Tell whether two tests of one text are about the same variables."""
        if self.index.class_of(one) is not self.index.class_of(other) and any(map(_is_self, _roots(one))):
            return False
        for left, right in zip(_roots(one), _roots(other), strict=False):
            first, second = self.index.scopes.get(left), self.index.scopes.get(right)
            if first is None or second is None:
                return False
            if not _is_self(left) and first.find(left.value) is not second.find(right.value):
                return False
        return True

    def _last(
        self, tests: Sequence[cst.BaseExpression], target: cst.CSTNode, node: cst.CSTNode, owner: cst.CSTNode
    ) -> bool:
        """Tell whether what is asked keeps its value for as long as a model's name does."""
        order, function = self.index.order, self.index.function(target)
        test = tests[0]
        is_here = [order[each] for each in tests if self.index.function(each) is function]
        first, *_, last = sorted((order[target], order[node], *is_here))
        is_together = function is self.index.function(node)
        is_once = function is None or function.name.value == "__init__"
        is_one_run = is_together and (function is None or isinstance(owner, cst.FunctionDef))

        def changes(places: Sequence[cst.CSTNode]) -> bool:
            if any(isinstance(a, _LOOPS) for place in places for a in self.index.ancestors(place)):
                return True
            if is_one_run:
                return any(first < order[place] < last for place in places)
            if self._is_framework(test):
                # What is asked to prepare is there: where it was not there yet, nothing was prepared.
                early = {self.index.function(place) for place in places} - {
                    function,
                    self.index.function(node),
                }
                return any(each is None or each.name.value not in _EARLY for each in early) or any(
                    self.index.function(place) not in early for place in places
                )
            return len(places) > 1

        made_of = text_of(target)
        for root in _roots(test):
            scope = self.index.scopes[root].find(root.value)
            if _is_self(root) or scope is None:
                continue
            is_local = not isinstance(scope.node, cst.Module)
            if is_local and not isinstance(owner, cst.FunctionDef) and not (is_together and is_once):
                return False  # a parameter: the next call may be given another value, and the same model
            places = [each.node for each in scope.bindings[root.value] if each.kind != "param"]
            if root.value == made_of or changes([each.node for each in scope.bindings[root.value]]):
                return False
            if is_local and any(self.index.function(each) is not scope.node for each in places):
                return False  # by a function in it, ``nonlocal``, whenever that is called
        parts = (part for each in tests for part in walk_for(each, cst.Attribute))
        texts = {each for part in parts if (each := dotted(part)) is not None}
        return made_of not in texts and not any(changes(self.index.places_set(text)) for text in texts)


def _as_given(fact: Fact, call: cst.Call, function: cst.FunctionDef) -> Fact | None:
    """Return what a fact of a function says of what a call gives: ``on`` of ``def wrap(model, sharded)``."""
    roots = {root.value for root in _roots(fact.test)}
    root = roots.pop() if len(roots) == 1 else ""
    given = given_for(call, function, root) if root else None
    if not isinstance(given, (cst.Name, cst.Attribute)) or not re.match(rf"{root}\b", fact.asked):
        return None
    return fact._replace(asked=f"{text_of(given)}{fact.asked[len(root) :]}", test=given)


def _framework(value: cst.CSTNode | None, index: Index) -> cst.BaseExpression | None:
    """Return the Accelerator or Fabric that a call asks to shard."""
    func = value.func if isinstance(value, cst.Call) else None
    if not isinstance(func, cst.Attribute) or func.attr.value not in _PREPARES:
        return None
    text = dotted(func.value) or ""
    return func.value if is_accelerator(text, index) or is_one(FABRICS, text, index) else None


def _split(test: cst.BaseExpression, *, truth: bool) -> Iterator[Fact]:
    """Yield what a test that is ``truth`` says, part by part."""
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        yield from _split(test.expression, truth=not truth)
        return
    if isinstance(test, cst.BooleanOperation):
        yield Fact(text_of(test), None, truth, test)
        if isinstance(test.operator, cst.And) is truth:
            yield from _split(test.left, truth=truth)
            yield from _split(test.right, truth=truth)
        return
    if isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
        operator, other = test.comparisons[0].operator, test.comparisons[0].comparator
        if isinstance(operator, (cst.Equal, cst.Is)):
            yield Fact(text_of(test.left), _constant(other), truth, test)
            return
        if isinstance(operator, (cst.IsNot, cst.NotEqual)):
            yield Fact(text_of(test.left), _constant(other), not truth, test)
            return
    yield Fact(text_of(test), None, truth, test)


def _constant(node: cst.BaseExpression) -> str:
    """Return what tells one constant from others: of strings their value, whatever their quotes."""
    return repr(node.evaluated_value) if isinstance(node, cst.SimpleString) else text_of(node)


def _is_steady(test: cst.BaseExpression) -> bool:
    """Tell whether a test gives the same each time, as long as its variables do."""
    for call in walk_for(test, cst.Call):
        name = last_name(call.func)
        if name not in STEADY or any(map(_is_self, _given(call))):
            return False
    return bool(_roots(test))


def _given(call: cst.Call) -> Iterator[cst.Name]:
    return (arg.value for arg in call.args if isinstance(arg.value, cst.Name))


def _is_self(name: cst.Name) -> bool:
    return name.value in {"cls", "self"}


def _roots(test: cst.BaseExpression) -> list[cst.Name]:
    """Return the variables that a test asks: of ``args.fsdp`` it is ``args``."""
    attributes = {id(each.attr) for each in walk_for(test, cst.Attribute)}
    keywords = {id(arg.keyword) for call in walk_for(test, cst.Call) for arg in call.args if arg.keyword}
    names = walk_for(test, cst.Name)
    return [each for each in names if id(each) not in attributes | keywords]
