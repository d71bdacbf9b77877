"""Models that are wrapped as they were made, in a source that wraps parts of another model elsewhere.

``net_g = FSDP(net_g)`` holds no FSDP where only ``net_d`` is given to the function that wraps layers.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.nodes import argument_of, bound_in, children, targets_of, walk, walk_for


if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from fsdp_migrate.source.python.text import Source


def free_of_parts(source: Source, calls: Collection[cst.Call], inner: Collection[cst.Call]) -> set[cst.Call]:
    """Return the calls whose model is seen to hold none of the parts that others wrap.

    Args:
        source: The source.
        calls: Its calls that make FSDP1's models.
        inner: Those of them that wrap parts of models.
    """
    makers: set[str] = set()
    for call in inner:
        around = [
            each for each in source.index.ancestors(call) if isinstance(each, cst.FunctionDef | cst.ClassDef)
        ]
        if not around:
            return set()  # where no function wraps them, any name may lead to them
        makers |= {each.name.value for each in around} - {"__init__"}
    return {call for call in calls if call not in inner and _Wrapped(source, call, makers).is_free()}


@dataclass(eq=False)
class _Wrapped:
    """A model that is wrapped, ``net = FSDP(net)``, followed through the function that does it."""

    source: Source
    call: cst.Call
    makers: Collection[str]
    """What the functions and classes are called in which parts are wrapped."""
    _reaching: dict[str, bool] = field(default_factory=dict, repr=False)

    def is_free(self) -> bool:
        model = argument_of(self.call, 0, {"module"})
        above = self.source.index.parents[self.call]
        targets = targets_of(above) if isinstance(above, cst.Assign) else []
        if not isinstance(model, cst.Name) or len(targets) != 1 or not isinstance(targets[0], cst.Name):
            return False
        home = self.source.index.function(self.call)
        if home is not None and (
            home.name.value in self.makers or self.source.index.class_of(home) is not None
        ):
            return False
        body = home.body if home is not None else self.source.index.module
        fed = self._made_of(model, body)
        if fed is None:
            return False
        held = self._held_by({model.value, targets[0].value}, body)
        return held is not None and self._touched(body).isdisjoint(fed | held)

    def _made_of(self, model: cst.Name, body: cst.CSTNode) -> set[str] | None:
        """Return the names that a model is made of; None where a caller gives it, or a part of it."""
        given = self._given(body)
        found, latest = {model.value}, {model.value}
        function = self.source.index.function(model)
        parameters = {each.name.value for each in walk_for(function.params, cst.Param)} if function else set()
        while latest:
            values = [value for name in latest for value in given[name]]
            if latest & parameters or any(map(self._reaches, values)):
                return None
            names = {each for value in values for each in _handed(value)}
            latest = (names & (parameters | {*given})) - found
            found |= latest
        return found

    def _held_by(self, names: set[str], body: cst.CSTNode) -> set[str] | None:
        """Return the names of what has such a model or its parts; None where something else keeps it."""
        found = {*names}
        pairs = [*_bindings(body)]
        while True:
            more = set[str]()
            for target, value in pairs:
                if not _mentions(value, found):
                    continue
                if not isinstance(target, cst.Name):
                    return None
                more.add(target.value)
            if more <= found:
                break
            found |= more
        returned = (each.value for each in walk_for(body, cst.Return) if each.value is not None)
        return None if any(_mentions(value, found) for value in returned) else found

    def _touched(self, body: cst.CSTNode) -> set[str]:
        """Return the names that are given to what wraps parts, or come from there."""
        made = {target: value for target, value in _bindings(body) if self._reaches(value)}
        wrappers = {
            name for target, value in made.items() if self._is_wrapper(value) for name in _names(target)
        }
        found = {name for target in made for name in _names(target)}
        for call in walk_for(body, cst.Call):
            if self._reaches(call.func) or self._is_given(call) or not wrappers.isdisjoint(_names(call.func)):
                found |= {*_names(call)}
        return found

    def _is_wrapper(self, value: cst.BaseExpression) -> bool:
        """Tell whether what wraps parts is had, not called: ``functools.partial(wrap, 0)``."""
        return not isinstance(value, cst.Call) or self._is_given(value)

    def _is_given(self, call: cst.Call) -> bool:
        """Tell whether a call is given what wraps parts: ``net.apply(wrap)``."""
        return any(isinstance(each.value, cst.Name) and self._reaches(each.value) for each in call.args)

    def _given(self, body: cst.CSTNode) -> defaultdict[str, list[cst.BaseExpression]]:
        found: defaultdict[str, list[cst.BaseExpression]] = defaultdict(list)
        for target, value in _bindings(body):
            if isinstance(target, cst.Name) and value is not self.call:
                found[target.value].append(value)
        return found

    def _reaches(self, node: cst.CSTNode) -> bool:
        """Tell whether a node names what wraps parts, or what calls it."""
        return any(map(self._leads, _names(node)))

    def _leads(self, name: str) -> bool:
        if name not in self._reaching:
            self._reaching[name] = name in self.makers
            self._reaching[name] |= any(map(self._reaches, self._defined.get(name, ())))
        return self._reaching[name]

    @functools.cached_property
    def _defined(self) -> dict[str, list[cst.CSTNode]]:
        found: dict[str, list[cst.CSTNode]] = {}
        by_kind = self.source.index.by_kind
        for node in (*by_kind.get(cst.FunctionDef, ()), *by_kind.get(cst.ClassDef, ())):
            if isinstance(node, cst.FunctionDef | cst.ClassDef):
                found.setdefault(node.name.value, []).append(node)
        return found


def _bindings(body: cst.CSTNode) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """Yield what gets a value, and of what: of ``a, b = x, y`` each of its own."""
    for node in walk(body):
        if isinstance(node, cst.For | cst.CompFor):
            yield from ((each, node.iter) for each in bound_in(node.target))
        value = node.value if isinstance(node, cst.Assign | cst.AnnAssign) else None
        for target in targets_of(node) if value is not None else ():
            yield from _pairs(target, value)


def _pairs(
    target: cst.BaseExpression, value: cst.BaseExpression | None
) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression]]:
    ones = target.elements if isinstance(target, cst.Tuple) else ()
    others = value.elements if isinstance(value, cst.Tuple) else ()
    if ones and len(ones) == len(others):
        yield from ((one.value, other.value) for one, other in zip(ones, others, strict=True))
    elif value is not None:
        yield from ((each, value) for each in bound_in(target))


def _names(node: cst.CSTNode) -> Iterator[str]:
    return (each.value for each in walk_for(node, cst.Name))


def _handed(value: cst.CSTNode) -> Iterator[str]:
    """Yield the names of what is given whole: ``base`` of ``Net(base, cfg.dim)`` and of ``base.to(0)``."""
    if isinstance(value, cst.Name):
        yield value.value
    elif isinstance(value, cst.Call):
        func = value.func
        yield from _handed(func.value) if isinstance(func, cst.Attribute) else ()
        yield from (name for each in value.args for name in _handed(each.value))
    elif isinstance(value, cst.Attribute | cst.Subscript):
        return
    else:
        yield from (name for each in children(value) for name in _handed(each))


def _mentions(node: cst.CSTNode, names: Collection[str]) -> bool:
    """Tell whether an expression has one of some models, or a part: what it gives, ``net(x)``, has none."""
    if isinstance(node, cst.Name):
        return node.value in names
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Name) and node.func.value in names:
        return False
    return any(_mentions(each, names) for each in children(node))
