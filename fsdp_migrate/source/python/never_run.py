"""Statements that never run, or never with FSDP1's class.

Below what always leaves their block; behind an import of FSDP2's that succeeds with each torch that is taken
here; and where a name is torch_xla's, which is None where FSDP is torch's.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.python.chosen_functions import is_chosen_there, places_chosen
from fsdp_migrate.source.python.nodes import dotted, last_name, text_of, walk_for
from fsdp_migrate.source.python.sure_imports import MISSING, is_fsdp2s, is_sure, may_miss


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fsdp_migrate.source.python.scopes import Binding, Index, Scope


_LEAVES = (cst.Return, cst.Raise, cst.Continue, cst.Break)
_FALSE = frozenset({"False", "None"})
_THERE = "there"
_SCOPES = (cst.FunctionDef, cst.ClassDef, cst.Lambda, cst.BaseComp)
_PLAIN = (cst.Import, cst.ImportFrom, cst.Pass)


@dataclass(eq=False)
class NeverRun:
    """Answers whether a place never runs with a model of FSDP1's. Reads only."""

    index: Index
    _leaving: dict[int, bool] = field(default_factory=dict, repr=False)
    _chosen: dict[cst.FunctionDef, bool] = field(default_factory=dict, repr=False)

    def holds(self, node: cst.CSTNode) -> bool:
        """Tell whether a place never runs with FSDP1; also in a private method called at such alone."""
        if not self._starts:
            return False
        if self._is_below(node):
            return True
        function = self.index.function(node)
        if function is not None and function not in self._chosen:
            self._chosen[function] = is_chosen_there(self.index, function, self._is_below, self._places)
        return function is not None and self._chosen[function]

    def _is_below(self, node: cst.CSTNode) -> bool:
        return any(id(each) in self._starts for each in (node, *self.index.ancestors(node)))

    def _places(self, function: cst.FunctionDef) -> list[cst.BaseExpression]:
        return places_chosen(self.index, function) if function.name.value in self._words else []

    @functools.cached_property
    def has_fallback(self) -> bool:
        """Whether FSDP1's class is called only where FSDP2 is missing, which it is with no torch any more."""
        calls = (cst.ensure_type(node, cst.Call) for node in self.index.by_kind.get(cst.Call, ()))
        made = [call for call in calls if self.index.fsdp1(call.func) == catalog.FSDP]
        return any(map(self._is_fallback, made))

    def _is_fallback(self, call: cst.Call) -> bool:
        function = self.index.function(call)
        tries = walk_for(function if function is not None else self.index.module, cst.Try)
        is_behind = any(self._is_fsdp2s(each) for each in (*tries, *self._flagged))
        return is_behind and self.holds(call)

    @functools.cached_property
    def _starts(self) -> dict[int, cst.CSTNode]:
        """The outermost of the nodes that never run, by identity."""
        return {id(node): node for node in self._find()}

    @functools.cached_property
    def _words(self) -> frozenset[str]:
        """The names in what never runs."""
        return frozenset(name.value for node in self._starts.values() for name in walk_for(node, cst.Name))

    def _find(self) -> Iterator[cst.CSTNode]:
        for node in self.index.by_kind.get(cst.IndentedBlock, ()):
            yield from self._below_leaving(cst.ensure_type(node, cst.IndentedBlock))
        for node in self.index.by_kind.get(cst.Try, ()):
            yield from self._handlers(cst.ensure_type(node, cst.Try), alive=False)
        for kind in (cst.If, cst.IfExp) if self._known else ():
            for node in self.index.by_kind.get(kind, ()):
                assert isinstance(node, (cst.If, cst.IfExp))
                said = self._said(node.test)
                other = node.orelse if said else node.body if said is False else None
                yield from () if other is None else (other,)

    def _below_leaving(self, block: cst.IndentedBlock) -> Iterable[cst.CSTNode]:
        for place, each in enumerate(block.body):
            if self._leaves(each):
                return block.body[place + 1 :]
        return ()

    def _leaves(self, node: cst.CSTNode | None) -> bool:
        """Tell whether a statement, or a block, always ends by leaving the block around it."""
        if node is None:
            return False
        if id(node) not in self._leaving:
            self._leaving[id(node)] = self._always_leaves(node)
        return self._leaving[id(node)]

    def _always_leaves(self, node: cst.CSTNode) -> bool:
        if isinstance(node, (cst.IndentedBlock, cst.SimpleStatementLine, cst.SimpleStatementSuite)):
            return any(map(self._leaves, node.body))
        if isinstance(node, (cst.Else, cst.ExceptHandler, cst.ExceptStarHandler, cst.Finally)):
            return self._leaves(node.body)
        if isinstance(node, cst.If):
            said = self._said(node.test)
            sides = [node.body] * (said is not False) + [node.orelse] * (not said)
            return all(map(self._leaves, sides))
        if isinstance(node, cst.Try):
            is_left = self._leaves(node.body) or self._leaves(node.orelse)
            is_left = is_left and all(map(self._leaves, self._handlers(node, alive=True)))
            return is_left or self._leaves(node.finalbody)
        return isinstance(node, _LEAVES)

    def _handlers(self, node: cst.Try, *, alive: bool) -> list[cst.ExceptHandler]:
        """Return the handlers of a ``try`` that may run, or those that never do."""
        if not self._is_fsdp2s(node):
            return [*node.handlers] if alive else []
        is_plain = _is_plain(node.body)
        is_calm = is_plain or not any(map(self._may_miss, walk_for(node.body, cst.Call)))
        dead = [each for each in node.handlers if is_plain or (is_calm and _is_of_missing(each))]
        return [each for each in node.handlers if (each in dead) is not alive]

    def _may_miss(self, call: cst.Call) -> bool:
        given = {last_name(arg.value) for arg in call.args}
        if not given.isdisjoint(self._functions):
            return True  # what is called may call what it is given
        return may_miss(dotted(call.func), self.index.qualified(call.func), self._functions | self._classes)

    @functools.cached_property
    def _functions(self) -> frozenset[str]:
        made = self.index.by_kind.get(cst.FunctionDef, ())
        return frozenset(cst.ensure_type(each, cst.FunctionDef).name.value for each in made)

    @functools.cached_property
    def _classes(self) -> frozenset[str]:
        made = self.index.by_kind.get(cst.ClassDef, ())
        return frozenset(cst.ensure_type(each, cst.ClassDef).name.value for each in made)

    def _is_fsdp2s(self, node: cst.Try) -> bool:
        """Tell whether a ``try`` imports FSDP2's names, and nothing that a torch may lack."""
        brought = list(_imports(node.body))
        is_raised = any(True for _ in walk_for(node.body, cst.Raise))
        return (
            any(is_fsdp2s(*each) for each in brought)
            and all(is_sure(*each) for each in brought)
            and not is_raised
        )

    # Names of the module that say what was found.

    @functools.cached_property
    def _flagged(self) -> list[cst.Try]:
        """Each ``try`` of the module that imports FSDP2's names, and sets others by whether it could."""
        tries = (each for each in self.index.module.body if isinstance(each, cst.Try))
        return [each for each in tries if _is_plain(each.body) and self._is_fsdp2s(each)]

    @functools.cached_property
    def _known(self) -> dict[str, str]:
        """What names of the module are where FSDP is torch's: there, or else ``None`` or ``False``."""
        xlas = (each for each in self.index.module.body if isinstance(each, cst.Try) and self._is_xlas(each))
        found = {name: other for each in xlas for name, other in self._names_of(each)}
        return found | {name: _THERE for each in self._flagged for name, _ in self._names_of(each)}

    def _is_xlas(self, node: cst.Try) -> bool:
        """Tell whether a name is the class of torch_xla's or, where that is missing, torch's."""
        if not any(module.split(".")[0] == "torch_xla" for module, _ in _imports(node.body)):
            return False
        if self._is_torchs_beside(node):
            return False
        for name, bindings in self.index.scope.bindings.items():
            brought = {self._place_in(each, node): each.qualified or "" for each in bindings}
            is_either = len(bindings) == len(brought) and brought.keys() == {"body", "handler"}
            if is_either and catalog.fsdp1_name(brought["handler"]) == catalog.FSDP:
                return brought["body"].startswith("torch_xla.") and name not in self._unsure
        return False

    def _is_torchs_beside(self, node: cst.Try) -> bool:
        """Tell whether torch's class is had in another way than by a ``try``'s handlers."""
        attributes = self.index.by_kind.get(cst.Attribute, ())
        if any(cst.ensure_type(each, cst.Attribute).attr.value == catalog.FSDP for each in attributes):
            return True
        known = (each for scope in self._scopes for found in scope.bindings.values() for each in found)
        brought = (each for each in known if each.qualified is not None)
        made = [each for each in brought if catalog.fsdp1_name(each.qualified or "") == catalog.FSDP]
        return any(self._place_in(each, node) != "handler" for each in made)

    def _names_of(self, node: cst.Try) -> Iterator[tuple[str, str]]:
        """Yield the names that a ``try`` binds, each with what it is else: one of None and False."""
        if self._is_any_bound(node):
            return
        for name, bindings in self.index.scope.bindings.items():
            places = [(each, self._place_in(each, node)) for each in bindings]
            made = [each for each, place in places if place == "body"]
            others = {_text(each) for each, place in places if place in {"before", "handler"}}
            is_known = bool(made) and all(place != "later" for _, place in places)
            if name in self._unsure or not is_known or len(others) != 1 or not others <= _FALSE:
                continue
            if all(each.kind == "import" or _text(each) == "True" for each in made):
                yield from ((name, each) for each in others)

    def _is_any_bound(self, node: cst.Try) -> bool:
        """Tell whether ``import *`` may bind the names of a ``try`` anew, in it or below."""
        stars = (each for each in self.index.by_kind.get(cst.ImportStar, ()))
        return any(self.index.order[each] > self.index.order[node] for each in stars)

    @functools.cached_property
    def _scopes(self) -> set[Scope]:
        return {*self.index.scopes.values()}

    @functools.cached_property
    def _unsure(self) -> frozenset[str]:
        """The names that are bound in another scope as well, or taken away."""
        inner = {name for scope in self._scopes if scope is not self.index.scope for name in scope.bindings}
        gone = (cst.ensure_type(each, cst.Del).target for each in self.index.by_kind.get(cst.Del, ()))
        return frozenset(inner.union(name.value for each in gone for name in walk_for(each, cst.Name)))

    def _place_in(self, binding: Binding, node: cst.Try) -> str:
        above = set(self.index.ancestors(binding.node))
        if any(isinstance(each, _SCOPES) for each in above):
            return "later"  # it is run when it is called
        if node.body in above:
            return "body"
        if not above.isdisjoint(node.handlers):
            return "handler"
        return "before" if self.index.order[binding.node] < self.index.order[node] else "later"

    def _said(self, test: cst.BaseExpression) -> bool | None:
        """Return whether a test is true, by what is known of the names in it."""
        if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
            said = self._said(test.expression)
            return None if said is None else not said
        if isinstance(test, cst.BooleanOperation):
            sides, decides = (
                (self._said(test.left), self._said(test.right)),
                isinstance(test.operator, cst.Or),
            )
            return decides if decides in sides else None if None in sides else not decides
        asked = (
            test.comparisons[0] if isinstance(test, cst.Comparison) and len(test.comparisons) == 1 else None
        )
        name = test.left if isinstance(test, cst.Comparison) else test
        if not self._known or not isinstance(name, cst.Name) or name not in self.index.scopes:
            return None
        is_global = self.index.scopes[name].find(name.value) is self.index.scope
        value = self._known.get(name.value) if is_global else None
        if value is None or isinstance(test, cst.Name):
            return None if value is None else value == _THERE
        is_none = asked is not None and text_of(asked.comparator) == "None"
        if asked is None or not is_none or not isinstance(asked.operator, (cst.Is, cst.IsNot)):
            return None
        return (value == "None") is isinstance(asked.operator, cst.Is)


def _text(binding: Binding) -> str:
    return "" if binding.value is None else text_of(binding.value)


def _statements(block: cst.BaseSuite) -> Iterator[cst.CSTNode]:
    for each in block.body:
        yield from each.body if isinstance(each, cst.SimpleStatementLine) else (each,)


def _is_plain(block: cst.BaseSuite) -> bool:
    """Tell whether a block imports, and sets names to True, False or None, and does nothing else."""
    for each in _statements(block):
        value = each.value if isinstance(each, cst.Assign) else None
        if not isinstance(each, _PLAIN) and not (value is not None and text_of(value) in {"True", *_FALSE}):
            return False
    return True


def _is_of_missing(handler: cst.ExceptHandler) -> bool:
    """Tell whether a handler catches what a missing import raises, and nothing else."""
    kind = handler.type
    each = [part.value for part in kind.elements] if isinstance(kind, cst.Tuple) else [kind]
    return all(isinstance(part, cst.Name) and part.value in MISSING for part in each)


def _imports(block: cst.BaseSuite) -> Iterator[tuple[str, list[str]]]:
    """Yield the modules that a block imports, each with the names of it; none where it is the whole."""
    for each in walk_for(block, cst.ImportFrom):
        module = "." * len(each.relative) + ((dotted(each.module) or "") if each.module else "")
        names = [] if isinstance(each.names, cst.ImportStar) else [dotted(a.name) or "?" for a in each.names]
        yield module, names or ["*"]
    for node in walk_for(block, cst.Import):
        yield from ((dotted(alias.name) or "?", []) for alias in node.names)
