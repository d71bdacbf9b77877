"""Functions that wrap what they are given, called by other files for parts of a model and for the whole.

Where one file has both, :mod:`fsdp_migrate.source.wrapped_twice` sees it.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from fsdp_migrate.source import catalog
from fsdp_migrate.source.project import Place, dotted
from fsdp_migrate.source.python.links import NOTHING
from fsdp_migrate.source.python.walked import walked_alone
from fsdp_migrate.source.python.wrappers import SAME_MODEL


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from fsdp_migrate.source.project import Definition, Module, Project
    from fsdp_migrate.source.python.links import Links


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SCOPES = (*_FUNCTIONS, ast.Lambda, ast.ClassDef)
_THROUGH: Final = frozenset({"enumerate", "list", "reversed"})
_ROUNDS: Final = 3
_PREPARE: Final = "prepare_fully_shard"

At = tuple["Path", int]
"""The file and the line of a call of FSDP1's class."""


_Site = tuple[ast.Call, ast.expr, frozenset[At]]
"""A call that wraps, the model that it is given, and where FSDP1's class is called for it."""


class _Wrapper(NamedTuple):
    """A function that wraps what it is given, and returns it."""

    place: int
    name: str
    made: frozenset[At]
    is_sure: bool
    """Whether it does so in any case."""


@dataclass(eq=False)
class _Scope:
    """A function, a method or a file's top level."""

    module: Module
    name: str
    node: ast.AST
    nodes: list[ast.AST] = field(init=False)

    def __post_init__(self) -> None:
        self.nodes = list(walked_alone(self.node, _SCOPES))

    @property
    def place(self) -> Place:
        return Place(self.module, self.name)


def with_nesting(project: Project, links: Mapping[Path, Links]) -> dict[Path, Links]:
    """Tell each file where it calls FSDP1's class for parts of a model that is wrapped too, or for that."""
    finding = _Finding(project)
    lines: dict[Path, set[int]] = {}
    for path, line in finding.nested():
        lines.setdefault(path, set()).add(line)
    again: dict[Path, set[int]] = {}
    for path, line in finding.again:
        again.setdefault(path, set()).add(line)
    told = {
        path: replace(
            links.get(path, NOTHING),
            nested=frozenset(lines.get(path, ())),
            wrapped_again=frozenset(again.get(path, ())),
        )
        for path in {*lines, *again}
    }
    return {**links, **told}


@dataclass(eq=False)
class _Finding:
    project: Project
    again: set[At] = field(default_factory=set)
    """The calls around what a function of another file has wrapped already."""
    _wrappers: dict[str, _Wrapper] = field(default_factory=dict)
    _turned: set[At] = field(default_factory=set)
    """The calls that an earlier rewriting has turned."""

    def nested(self) -> Iterator[At]:
        """Yield the calls that make such models, of functions of other files and beside them."""
        words = (catalog.FSDP, _PREPARE)
        paths = [p for p, text in self.project.texts.items() if any(word in text for word in words)]
        for _ in range(_ROUNDS):
            before = len(self._wrappers)
            for scope in self._scopes(paths):
                self._note(scope)
            if len(self._wrappers) == before:
                break
            names = {key.rpartition(":")[2].rpartition(".")[2] for key in self._wrappers}
            paths = self.project.holding(names)
        for scope in self._scopes(paths) if self._wrappers else ():
            yield from self._in_scope(scope)

    def _scopes(self, paths: list[Path]) -> Iterator[_Scope]:
        for module in self.project.parsed(paths):
            yield _Scope(module, "", module.tree)
            for name, definition in module.definitions.items():
                if isinstance(definition.node, _FUNCTIONS):
                    yield _Scope(module, name, definition.node)

    def _note(self, scope: _Scope) -> None:
        """Note a function that returns what it was given, wrapped."""
        if not isinstance(scope.node, _FUNCTIONS):
            return
        names = [each.arg for each in (*scope.node.args.posonlyargs, *scope.node.args.args)]
        own = names[1:] if names[:1] in (["self"], ["cls"]) else names
        returned = [node.value for node in scope.nodes if isinstance(node, ast.Return) and node.value]
        for value in (each for node in returned for each in _values(scope, node)):
            found = self._wrapped(value, scope) if isinstance(value, ast.Call) else None
            if found is not None and isinstance(found[0], ast.Name) and found[0].id in own:
                name = found[0].id
                key = f"{scope.module.path}:{scope.name}"
                is_sure = all(self._is_wrapped_always(scope, each) for each in returned)
                self._wrappers[key] = _Wrapper(own.index(name), name, found[1], is_sure)

    def _wrapped(self, call: ast.Call, scope: _Scope) -> tuple[ast.expr, frozenset[At]] | None:
        """Return what a call wraps, and where FSDP1's class is called for it."""
        text = dotted(call.func) or ""
        known = self.project.qualified(text, Place(scope.module, ""))
        is_turned = known == f"fsdp_migrate.{_PREPARE}"
        if is_turned or catalog.fsdp1_name(known) == catalog.FSDP:
            model, at = _argument(call, 0, "module"), (scope.module.path, call.lineno)
            self._turned |= {at} if is_turned else set()
            return None if model is None else (model, frozenset({at}))
        called = self._called(text, scope)
        wrapper = self._wrappers.get(called.key) if called is not None else None
        model = _argument(call, wrapper.place, wrapper.name) if wrapper is not None else None
        return None if model is None or wrapper is None else (model, wrapper.made)

    def _is_wrapped_always(self, scope: _Scope, node: ast.expr) -> bool:
        """Tell whether what a function returns is wrapped in any case: not below an ``if``."""
        if isinstance(node, ast.Call):
            return self._wrapped(node, scope) is not None
        body = scope.node.body if isinstance(scope.node, _FUNCTIONS) else []
        given = [
            each.value
            for each in body
            if isinstance(each, ast.Assign) and _text(node) in map(ast.unparse, each.targets)
        ]
        return bool(given) and isinstance(given[-1], ast.Call) and self._wrapped(given[-1], scope) is not None

    def _called(self, text: str, scope: _Scope) -> Definition | None:
        if text.startswith("self."):
            return self.project.own(text.removeprefix("self."), scope.place)
        return self.project.named(text, scope.place) if text else None

    def _in_scope(self, scope: _Scope) -> Iterator[At]:
        calls = [node for node in scope.nodes if isinstance(node, ast.Call)]
        sites = [(call, *found) for call in calls if (found := self._wrapped(call, scope)) is not None]
        self._note_again(scope, sites)
        sites = [each for each in sites if each[2].isdisjoint(self._turned)]
        places = {id(call): set(_places(scope, call, model)) for call, model, _ in sites}
        for call, _, made in sites:
            for whole, model, others in sites:
                # What this file wraps itself is seen there.
                is_own = {path for path, _ in made | others} == {scope.module.path}
                text = _text(model)
                below = (f"{text}.", f"{text}[")
                is_part = any(each.startswith(below) for each in places[id(call)])
                if call is not whole and is_part and not is_own and not _exclude(scope, call, whole):
                    yield from made | others

    def _note_again(self, scope: _Scope, sites: list[_Site]) -> None:
        """Note what wraps a model that a call of another file's function has wrapped just before."""
        for call, model, made in sites:
            inner = next((each for each in sites if each[0] is _given_last(scope, call, model)), None)
            if inner is None or not self._is_sure(inner[0], scope):
                continue
            if {path for path, _ in made | inner[2]} != {scope.module.path}:
                self.again |= {at for at in made if at[0] == scope.module.path} or made

    def _is_sure(self, call: ast.Call, scope: _Scope) -> bool:
        called = self._called(dotted(call.func) or "", scope)
        wrapper = self._wrappers.get(called.key) if called is not None else None
        return wrapper is None or wrapper.is_sure


def _given_last(scope: _Scope, call: ast.Call, model: ast.expr) -> ast.expr | None:
    """Return what a model is that a call is given, or was given last above it, where both run."""
    model = _itself(model)
    if isinstance(model, ast.Call):
        return model
    given = [
        each
        for each in scope.nodes
        if isinstance(each, ast.Assign)
        and ast.unparse(model) in map(ast.unparse, each.targets)
        and (each.end_lineno or each.lineno) < call.lineno
    ]
    last = max(given, key=lambda each: each.lineno, default=None)
    if last is None or any(_runs_one(node, last, call) for node in scope.nodes):
        return None
    return _itself(last.value)


def _runs_one(node: ast.AST, one: ast.AST, other: ast.AST) -> bool:
    """Tell whether a place stands in a branch, or a loop, in which another does not."""
    if not isinstance(node, (ast.If, ast.For, ast.While, ast.Try)):
        return False
    parts = [
        node.body,
        node.orelse,
        *([each.body for each in node.handlers] if isinstance(node, ast.Try) else []),
    ]
    inside = [{id(each) for stmt in part for each in ast.walk(stmt)} for part in parts]
    return any(id(one) in part and id(other) not in part for part in inside)


def _exclude(scope: _Scope, one: ast.Call, other: ast.Call) -> bool:
    """Tell whether two calls stand in branches of one choice."""
    for node in scope.nodes:
        if isinstance(node, (ast.If, ast.IfExp)):
            bodies = [node.body] if isinstance(node, ast.IfExp) else node.body
            others = [node.orelse] if isinstance(node, ast.IfExp) else node.orelse
            first = {inner for each in bodies for inner in ast.walk(each)}
            second = {inner for each in others for inner in ast.walk(each)}
            if (one in first and other in second) or (one in second and other in first):
                return True
    return False


def _values(scope: _Scope, node: ast.expr) -> Iterator[ast.expr]:
    """Yield what an expression is: of a name what the function gives it."""
    yield node
    for each in scope.nodes if isinstance(node, ast.Name) else ():
        if isinstance(each, ast.Assign) and any(dotted(t) == dotted(node) for t in each.targets):
            yield each.value


def _argument(call: ast.Call, place: int, name: str) -> ast.expr | None:
    named = [each.value for each in call.keywords if each.arg == name]
    return next(iter([*named, *call.args[place : place + 1]]), None)


def _places(scope: _Scope, call: ast.Call, model: ast.expr) -> Iterator[str]:
    """Yield where a wrapped part comes from, and where it is put: ``net.blocks``, of a loop over them."""
    for node in scope.nodes:
        if isinstance(node, ast.Assign) and any(each is call for each in ast.walk(node.value)):
            yield from map(ast.unparse, node.targets)
        elif isinstance(node, ast.Call) and dotted(node.func) == "setattr" and call in node.args:
            yield f"{ast.unparse(node.args[0])}."
    yield _text(model)
    names = {each.id for each in ast.walk(model) if isinstance(each, ast.Name)}
    for _ in range(_ROUNDS):
        loops = [node for node in scope.nodes if isinstance(node, (ast.For, ast.comprehension))]
        binding = [each for each in loops if names & _names(each.target)]
        yield from (_text(each.iter) for each in binding)
        names = {name for each in binding for name in _names(each.iter)}


def _names(node: ast.expr) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)} - _THROUGH


def _text(node: ast.expr) -> str:
    return ast.unparse(_itself(node))


def _itself(node: ast.expr) -> ast.expr:
    """Return a model as it stands: without ``.to(device)``, and what goes through it."""
    while isinstance(node, ast.Call):
        if dotted(node.func) in _THROUGH and node.args:
            node = node.args[0]
        elif isinstance(node.func, ast.Attribute) and node.func.attr in SAME_MODEL:
            node = node.func.value
        else:
            break
    return node
