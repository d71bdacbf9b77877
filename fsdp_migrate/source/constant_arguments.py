"""Calls whose constants leave out the branch of a function that shards: ``get_model(world_size=1)``."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source.call_arguments import given_by
from fsdp_migrate.source.project import Definition, Place, dotted
from fsdp_migrate.source.python.argument_places import every_argument, named_arguments, parameters_of
from fsdp_migrate.source.python.call_signatures import signature_of
from fsdp_migrate.source.python.known_constants import Constants, Value, constant, truth_of
from fsdp_migrate.source.python.switched_off import is_switched_off
from fsdp_migrate.source.python.walked import walked


if TYPE_CHECKING:
    from pathlib import Path

    from fsdp_migrate.source.python.call_signatures import Signature


_DEEPEST: Final = 3
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
_LEAVES: Final = (ast.Return, ast.Raise, ast.Continue, ast.Break)
# What may shard by its name, or by what its source has; not what only asks ranks.
_MAY_SHARD: Final = re.compile(r"(?i)accelerat|ddp|fsdp|parallel|prepare|setup|shard|wrap|convert|distribut")
_ASKS: Final = re.compile(
    r"(?:^|\.)(?:get_(?:local_)?rank|get_world_size|is_(?:available|initialized)|barrier|set_device|print)$"
)
_FSDP: Final = re.compile(r"FSDP|FullyShard|fully_shard")


Called = Callable[[ast.expr, Place], Iterable[Definition]]
"""What an expression at a place may call."""
Has = Callable[[str, Place], bool]
"""Whether a name at a place is known to be, or to hold, a sharded model."""


@dataclass(eq=False)
class ToldOff:
    """The calls of a project that say that their models are not sharded."""

    _plain: dict[Path, set[Signature]] = field(default_factory=dict, repr=False)
    _others: dict[Path, set[Signature]] = field(default_factory=dict, repr=False)
    _known: dict[ast.Call, frozenset[str] | None] = field(default_factory=dict, repr=False)

    def holds(self, call: ast.Call, definition: Definition, place: Place, called: Called, has: Has) -> bool:
        """Tell whether a call of what gives a sharded model leaves out what shards it."""
        if is_switched_off((each.arg or "", ast.unparse(each.value)) for each in call.keywords):
            return True
        if call not in self._known:
            self._known[call] = shards_never(definition, call, called)
        read, its = self._known[call], Place(definition.module, definition.name)
        given = every_argument(call)
        # What is given to it, or is there already, it may give back.
        parts = [each for part in given for each in ast.walk(part) if isinstance(each, ast.expr)]
        texts = [(dotted(each), place) for each in parts]
        texts += [(each, its) for each in read or ()]
        is_one = read is not None and not any(text is not None and has(text, at) for text, at in texts)
        is_one = is_one and not any(
            isinstance(each, ast.Call) and _may_shard(each, place, called, 0) for each in parts
        )
        seen = self._plain if is_one else self._others
        seen.setdefault(place.module.path, set()).add(signature_of(call))
        return is_one

    def in_file(self, path: Path) -> frozenset[Signature]:
        """Return those of a file, without what has the same text elsewhere in it and is sharded there."""
        return frozenset(self._plain.get(path, set()) - self._others.get(path, set()))


def shards_never(function: Definition, call: ast.Call, called: Called) -> frozenset[str] | None:
    """Return what a function reads from outside, where it runs nothing that may shard, by a call's constants.

    Args:
        function: The function.
        call: A call of it.
        called: Returns what an expression at a place may call.
    """
    node = function.node
    if not isinstance(node, _FUNCTIONS) or node.decorator_list:
        return None
    known = constants_of(function, call)
    if not known:
        return None
    run = _Run(known)
    run.block(node.body)
    place = Place(function.module, function.name)
    if not run.is_decided or any(_may_shard(each, place, called, 0) for each in run.calls):
        return None
    own = {each.arg for each in ast.walk(node) if isinstance(each, ast.arg)} - {"self", "cls"}
    own |= {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and not _is_read(each)}
    return frozenset(each for each in run.read if each.partition(".")[0] not in own)


def _may_shard(call: ast.Call, place: Place, called: Called, depth: int) -> bool:
    text = dotted(call.func) or (call.func.attr if isinstance(call.func, ast.Attribute) else "?")
    if _ASKS.search(text) is None and (text == "?" or _MAY_SHARD.search(text) is not None):
        return True
    for made in called(call.func, place):
        if any(map(_says_it_shards, ast.walk(made.node))):
            return True
        inner = (each for each in ast.walk(made.node) if isinstance(each, ast.Call))
        its = Place(made.module, made.name)
        if depth < _DEEPEST and any(_may_shard(each, its, called, depth + 1) for each in inner):
            return True
    return False


def _says_it_shards(node: ast.AST) -> bool:
    """Tell whether a node names FSDP, or hands something to ``prepare``; comments and docstrings do not."""
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr == "prepare"
    names = [each.name for each in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else [name]
    return any(map(_FSDP.search, names))


def constants_of(function: Definition, call: ast.Call) -> dict[str, Value]:
    """Return the parameters that have constants, by a call or by their defaults, and that keep them."""
    node = function.node
    is_open = any(isinstance(each, ast.Starred) for each in call.args) or any(
        not k.arg for k in call.keywords
    )
    if not isinstance(node, _FUNCTIONS) or is_open:
        return {}
    stored = {each.id for each in walked(node) if isinstance(each, ast.Name) and not _is_read(each)}
    names = {*(each.arg for each in parameters_of(node)), *named_arguments(call)}
    given = ((name, constant(given_by(function, name, call))) for name in names - stored)
    return {name: value for name, value in given if value is not None}


def _is_read(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Load)


@dataclass
class _Run:
    """What may run of a function whose parameters have constants."""

    known: Constants
    calls: list[ast.Call] = field(default_factory=list)
    read: set[str] = field(default_factory=set)
    """The names and attributes that may be read."""
    is_decided: bool = False
    """Whether a constant has left something out."""

    def block(self, body: list[ast.stmt]) -> bool:
        """Go through a block, and return whether it always leaves the one around it."""
        return any(self._leaves(each) for each in body)

    def _leaves(self, node: ast.stmt) -> bool:
        if isinstance(node, ast.If):
            self._see(node.test)
            truth = truth_of(node.test, self.known)
            if truth is None:
                return all([self.block(node.body), self.block(node.orelse)])
            self.is_decided = True
            return self.block(node.body if truth else node.orelse)
        for name, value in ast.iter_fields(node):
            parts = value if isinstance(value, list) else [value]
            if name in {"body", "orelse", "finalbody"} and all(isinstance(each, ast.stmt) for each in parts):
                leaves = self.block(parts)
                if leaves and isinstance(node, ast.With):
                    return True
                continue
            for each in parts:
                if isinstance(each, (ast.ExceptHandler, ast.match_case)):
                    self.block(each.body)
                elif isinstance(each, ast.AST):
                    self._see(each)
        return isinstance(node, _LEAVES)

    def _see(self, node: ast.AST) -> None:
        """Note the calls of an expression that may be evaluated."""
        if isinstance(node, ast.IfExp):
            self._see(node.test)
            truth = truth_of(node.test, self.known)
            self.is_decided |= truth is not None
            if truth is not False:
                self._see(node.body)
            if truth is not True:
                self._see(node.orelse)
            return
        if isinstance(node, ast.BoolOp):
            for part in node.values:
                self._see(part)
                if truth_of(part, self.known) is isinstance(node.op, ast.Or):
                    self.is_decided = True
                    return
            return
        if isinstance(node, ast.Call):
            self.calls.append(node)
        if isinstance(node, (ast.Attribute, ast.Name)) and (text := dotted(node)) is not None:
            self.read.add(text)
        for each in ast.iter_child_nodes(node):
            self._see(each)
