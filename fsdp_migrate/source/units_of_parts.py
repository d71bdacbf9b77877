"""Which parts of a model FSDP1 made units of: those that are wrapped by hand, or whose class a policy names.

What is no unit had no parameters of its own without ``use_orig_params=True``.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.ignored_states import ignored_texts
from fsdp_migrate.source.parameter_values import is_itself
from fsdp_migrate.source.python.keywords import hides_arguments, values_by_stars
from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.loops import binds, item_of, loops_around
from fsdp_migrate.source.python.nodes import dotted, given_by_name, last_name, walk_for
from fsdp_migrate.source.python.values import Values


if TYPE_CHECKING:
    from collections.abc import Iterable

    from fsdp_migrate.source.python.text import Source


Holding = Literal["all", "none", "some", "unknown"]
"""Which of a part's parameters FSDP1's flat ones gave it: those of units alone, that it is or holds."""

_ITEM: Final = "[]"
_POLICY: Final = "auto_wrap_policy"
_PLACE: Final = catalog.CONSTRUCTOR_ARGUMENTS.index(_POLICY)
LISTS: Final = frozenset({"ModuleDict", "ModuleList", "Sequential"})
"""Torch's modules that hold others, of any class."""
_WALKS: Final = frozenset({"modules", "named_modules"})
_PARTS: Final = _WALKS | {"children", "named_children"}
_ALWAYS: Final = "always_wrap_policy"
_BY_HAND: Final = frozenset({"auto_wrap", "enable_wrap", "wrap"})
_DEEPEST: Final = 4
_MADE: Final = re.compile(r"\bself\.(\w+)\b[^=\n]*=(?!=)\s*(?:\w+\.)*([A-Z]\w*)\(")
_OF_LISTS: Final = re.compile(r"[\[(:\s]([A-Z]\w*)\(")
_AHEAD: Final = 200
_NAMED: Final = re.compile(
    r"(?:\bModuleWrapPolicy\(|\bauto_wrap_policy\s*=\s*(?=\{)|\btransformer_layer_cls(?:_to_wrap)?\W{1,4})"
    r"\s*[\[{('\"]*([\w., \n'\"]+)"
)
_POLICIES: Final = ("ModuleWrapPolicy", "auto_wrap_policy", "transformer_layer_cls")
_WORD: Final = re.compile(r"[A-Za-z_][\w.]*")


class Part(NamedTuple):
    """A part of a sharded model."""

    model: cst.BaseExpression
    steps: tuple[str, ...]
    """The attributes that lead to it, and ``[]`` for an item of a list."""


def part_of(source: Source, node: cst.BaseExpression) -> Part | None:
    """Return which part of a sharded model an expression is; None of the whole, and of what is none.

    In a method that a sharded model is asked for, ``self`` is that model.
    """
    models, steps = source.models, list[str]()
    part: cst.BaseExpression | None = None if node in models.plain_above else node
    while part is not None and not models.is_other_branch(part):
        if models.certainty(part) is not None or is_itself(source, part):
            return Part(part, tuple(reversed(steps))) if steps else None
        if isinstance(part, cst.Subscript):
            steps.append(_ITEM)
            part = part.value
            continue
        step = _step(source, part)
        if step is None:
            return None
        steps += step
        part = models.sharded_with(part)
    return _taken_above(source, node) if isinstance(node, cst.Name) and node in source.index.scopes else None


def _taken_above(source: Source, name: cst.Name) -> Part | None:
    """Return the part that a name was given above the call, of its function, that wraps the whole."""
    index, value = source.index, last_value(source.index, name)
    steps = (dotted(value) or "").split(".") if isinstance(value, cst.Attribute) else []
    for call in source.calls if len(steps) > 1 else ():
        if not source.models.is_constructor(call.func) or index.function(call) is not index.function(name):
            continue
        wrapped = (dotted(call.args[0].value) or "").split(".") if call.args else [""]
        is_its = steps[: len(wrapped)] == wrapped and len(steps) > len(wrapped)
        if is_its and value is not None and index.order[value] < index.order[call] < index.order[name]:
            return Part(call, tuple(steps[len(wrapped) :]))
    return None


def own_part(source: Source, node: cst.BaseExpression) -> Part | None:
    """Return which part of its module an expression is in a module's class: ``self.layers[0]``."""
    owner, steps = source.index.class_of(node), list[str]()
    if owner is None or "Module" not in {last_name(base.value) for base in owner.bases}:
        return None
    part: cst.BaseExpression | None = node
    while part is not None and dotted(part) != "self":
        if isinstance(part, cst.Subscript):
            steps.append(_ITEM)
            part = part.value
            continue
        steps += _step(source, part) or []
        part = part.value if isinstance(part, cst.Attribute) else item_of(source.index, part)
    return Part(part, tuple(reversed(steps))) if part is not None and steps else None


def _step(source: Source, part: cst.BaseExpression) -> list[str] | None:
    """Return the step by which an expression is a part: an empty one of another name of one.

    None of what goes through all modules, ``for m in model.modules()``, of which the rule of owners speaks;
    and of children, of which FSDP1's wrapper had one.
    """
    if isinstance(part, cst.Attribute):
        return [] if part.attr.value in catalog.WRAPPED else [part.attr.value]
    if isinstance(part, cst.Name):
        loop = next((each for each in loops_around(source.index, part) if binds(each, part.value)), None)
        asked = [each.func for each in walk_for(loop.iter, cst.Call)] if loop is not None else []
        walks = [each for each in asked if isinstance(each, cst.Attribute) and each.attr.value in _PARTS]
        of_one = any(each.attr.value in _WALKS or source.models.certainty(each.value) for each in walks)
        return None if of_one else [] if loop is None else [_ITEM]
    return [_ITEM]


def made_parts(texts: Iterable[str]) -> dict[str, frozenset[str]]:
    """Return by the attributes of objects the classes that sources make them of; of a list its items' too.

    Example:
        >>> found = made_parts(["self.head = nn.Linear(2, 2)", "self.all = nn.ModuleList([Block()])"])
        >>> {name: sorted(classes) for name, classes in found.items()}
        {'head': ['Linear'], 'all': ['Block', 'ModuleList']}
    """
    found: dict[str, set[str]] = {}
    for text in texts:
        for match in _MADE.finditer(text):
            classes = found.setdefault(match[1], set())
            classes.add(match[2])
            if match[2] in LISTS:
                ahead = text[match.end() - 1 : match.end() + _AHEAD].partition("self.")[0]
                classes.update(_OF_LISTS.findall(ahead))
    return {name: frozenset(classes) for name, classes in found.items()}


def unit_classes(texts: Iterable[str]) -> frozenset[str]:
    """Return the classes that policies of sources name, in any form.

    Example:
        >>> sorted(unit_classes(["ModuleWrapPolicy({m.Block, Tower})", "transformer_layer_cls={Layer}"]))
        ['Block', 'Layer', 'Tower']
    """
    telling = (text for text in texts if any(word in text for word in _POLICIES))
    named = (match[1] for text in telling for match in _NAMED.finditer(text))
    return frozenset(name.rpartition(".")[2] for each in named for name in _WORD.findall(each))


@dataclass(eq=False)
class Units:
    """Answers for one source what of a model's parts are units of FSDP1's. Reads only."""

    source: Source
    _classes: set[str] = field(init=False, default_factory=set)
    """Those that policies name."""
    _wrapped: set[str] = field(init=False, default_factory=set)
    """The attributes that are wrapped by hand, also a trainer's: ``self.model = FSDP(net)``."""
    _has_inner: bool = field(init=False, default=False)
    """Whether parts of models are among them."""
    _ignored: set[str] = field(init=False, default_factory=set)
    """The attributes that FSDP leaves alone, whose parameters are never flat."""
    _is_sure: bool = field(init=False, default=True)
    """Whether every call that wraps is seen, and what it makes units of."""
    _is_always: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        source, models = self.source, self.source.models
        made = [call for call in source.calls if models.is_constructor(call.func)]
        partial = [call for call in source.calls if self._is_partial(call)]
        self._is_sure = bool(made)
        for call in (*made, *partial):
            self._read_policy(call)
            self._ignored.update(text.rpartition(".")[2] for text in ignored_texts(source, call))
        # A partial, `auto_wrap` and `wrap` may be given anything.
        by_hand = any(source.index.fsdp1(call.func) in _BY_HAND for call in source.calls)
        self._is_sure = self._is_sure and not by_hand and not partial
        for call in source.calls:
            name = source.index.fsdp1(call.func)
            if call in made or name in _BY_HAND:
                self._read_place(call)

    def held_by(self, part: Part) -> Holding:
        """Return which of a part's parameters FSDP1's flat ones gave it, as far as is seen."""
        named = [step for step in part.steps if step != _ITEM]
        name = named[-1] if named else ""
        if self._is_always or name in self._wrapped | self._ignored:
            return "all"
        if self._is_sure and not self._classes and not self._has_inner:
            return "none"
        is_item = part.steps[-1] == _ITEM
        if is_item and not named:
            return "unknown"
        values = self._made.get(name, [])
        if not values or not self._is_sure:
            return self._of_classes(name, is_item=is_item)
        found = {self._of_value(each, 0) for each in values}
        known = found.pop() if len(found) == 1 else "unknown"
        # The items of a list are what policies name more often than not.
        return "all" if is_item and known in {"some", "unknown"} else known

    def is_unit(self, part: Part) -> bool:
        """Tell whether a part is one for certain: a policy names the class that this source makes it of."""
        name = next((step for step in reversed(part.steps) if step != _ITEM), "")
        return {self._of_value(each, 0) for each in self._made.get(name, [])} == {"all"}

    def _of_classes(self, name: str, *, is_item: bool) -> Holding:
        """Return it by the names of the classes that the project makes such an attribute of."""
        made, units = self.source.links.made_parts.get(name, frozenset()), self.source.links.unit_classes
        return "all" if is_item or not made.isdisjoint(units | self._classes) else "unknown"

    @functools.cached_property
    def _made(self) -> dict[str, list[cst.BaseExpression]]:
        """What the classes of this source make the attributes of their objects of."""
        found: dict[str, list[cst.BaseExpression]] = {}
        for assign in self.source.assignments:
            for each in assign.targets:
                target = each.target
                if isinstance(target, cst.Attribute) and dotted(target.value) == "self":
                    found.setdefault(target.attr.value, []).append(assign.value)
        return found

    def _of_value(self, value: cst.BaseExpression, depth: int) -> Holding:
        if not isinstance(value, cst.Call) or depth > _DEEPEST:
            return "unknown"
        name = last_name(value.func)
        if name in self._classes:
            return "all"
        if name in LISTS:
            return self._joined([self._of_value(each, depth + 1) for each in _items(value)])
        if any(each.startswith("torch.nn.") for each in self.source.index.qualified(value.func)):
            return "none"
        for owner in self.source.index.by_kind.get(cst.ClassDef, ()):
            made = cst.ensure_type(owner, cst.ClassDef)
            if made.name.value == name:
                return self._of_class(made, depth)
        return "unknown"

    def _of_class(self, owner: cst.ClassDef, depth: int) -> Holding:
        if any(last_name(base.value) in self._classes for base in owner.bases):
            return "all"
        parts = [self._of_value(each, depth + 1) for each in self._parts_of(owner)]
        found = self._joined(parts)
        return "some" if found == "all" else found

    def _parts_of(self, owner: cst.ClassDef) -> list[cst.BaseExpression]:
        """Return the modules that a class makes attributes of."""
        assigns = [each for values in self._made.values() for each in values]
        own = (each for each in assigns if self.source.index.class_of(each) is owner)
        return [each for each in own if isinstance(each, cst.Call) and last_name(each.func)[:1].isupper()]

    def _joined(self, parts: list[Holding]) -> Holding:
        kinds = set(parts)
        if len(kinds) == 1:
            return kinds.pop()
        return "some" if kinds & {"all", "some"} else "unknown"

    def _is_partial(self, call: cst.Call) -> bool:
        """Tell whether a call gives FSDP1's class on: ``partial(FSDP, ...)``."""
        index = self.source.index
        is_check = dotted(call.func) in {"isinstance", "issubclass"}
        return not is_check and any(index.fsdp1(arg.value) == catalog.FSDP for arg in call.args)

    def _read_policy(self, call: cst.Call) -> None:
        """Take up the classes that a call's policy names."""
        placed = [arg.value for arg in call.args if arg.keyword is None and not arg.star]
        given = [*given_by_name(call, _POLICY), *values_by_stars(self.source, call, _POLICY)]
        given += placed[_PLACE : _PLACE + 1]
        self._is_sure = self._is_sure and (bool(given) or not hides_arguments(self.source, call))
        for value in given:
            values = Values(self.source)
            policy = values.read(value)
            classes = policy.get("transformer_layer_cls") if isinstance(policy, dict) else policy
            if policy == _ALWAYS:
                self._is_always = True
            elif isinstance(classes, list) and not values.has_unread(classes):
                self._classes.update(str(each).rpartition(".")[2] for each in classes)
            elif policy is not None:
                self._is_sure = False

    def _read_place(self, call: cst.Call) -> None:
        """Take up the attribute that a call wraps: ``net.body = FSDP(net.body)``, ``net.all[i] = ...``."""
        index = self.source.index
        above = index.parents[call]
        targets = [each.target for each in above.targets] if isinstance(above, cst.Assign) else []
        places = [*targets, *(arg.value for arg in call.args[:1] if not arg.star)]
        is_seen = False
        for place in places:
            owner: cst.BaseExpression = place
            while isinstance(owner, cst.Subscript):
                owner = owner.value
            if isinstance(owner, cst.Attribute):
                self._wrapped.add(owner.attr.value)
                is_inner = self.source.models.key_of(owner.value) in self.source.models.wholes
                self._has_inner |= is_inner or place is not owner or dotted(owner.value) != "self"
                is_seen = True
            elif isinstance(owner, cst.Name):
                is_seen = is_seen or not self._is_of_children(owner)
        self._is_sure = self._is_sure and is_seen

    def _is_of_children(self, name: cst.Name) -> bool:
        """Tell whether a loop goes through parts of a model that it wraps: ``for n, c in m.children()``."""
        for loop in loops_around(self.source.index, name):
            asked = (call.func for call in walk_for(loop.iter, cst.Call))
            if binds(loop, name.value) and any(last_name(func) in _PARTS for func in asked):
                return True
        return False


@functools.lru_cache(maxsize=1)
def units_of(source: Source) -> Units:
    """Return the units of a source, which several rules ask for, and each of their places."""
    return Units(source)


def _items(call: cst.Call) -> list[cst.BaseExpression]:
    """Return what a list of modules is made of, where that stands in the call."""
    found: list[cst.BaseExpression] = []
    for arg in call.args:
        value = arg.value
        if isinstance(value, (cst.ListComp, cst.GeneratorExp)):
            found.append(value.elt)
        elif isinstance(value, cst.DictComp):
            found.append(value.value)
        elif isinstance(value, (cst.List, cst.Tuple, cst.Dict)):
            found += [each.value for each in value.elements]
        else:
            found.append(value)
    return found
