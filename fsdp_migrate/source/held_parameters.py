"""Whose parameters the names of a project's functions hold, what functions give, and what objects keep.

Lists and dicts of parameters as they are, not of copies: ``[p for p in model.parameters()]``.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source.project import Definition, Place, dotted, last_name
from fsdp_migrate.source.python.argument_places import argument_at, given_at
from fsdp_migrate.source.python.links import PART
from fsdp_migrate.source.python.parameters import PARAMETERS, SAME_PARAMETERS
from fsdp_migrate.source.python.walked import walked


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from fsdp_migrate.source.python.links import GivenParameters


_FILL: Final = frozenset({"add", "append", "extend", "insert", "setdefault", "update"})
_VIEWS: Final = frozenset({"items", "values"})
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
_COMPREHENSIONS: Final = (ast.ListComp, ast.SetComp, ast.GeneratorExp)
_DEEPEST: Final = 3

Held = dict[str, set[str]]
"""By a name, or an attribute of ``self``, the models of whose parameters it holds some."""


@dataclass(eq=False)
class HeldParameters:
    """Answers for the functions of a project. Reads only."""

    called: Callable[[ast.expr, Place], Iterable[Definition]]
    _held: dict[ast.AST, Held] = field(default_factory=dict, repr=False)
    _given: dict[ast.AST, frozenset[GivenParameters]] = field(default_factory=dict, repr=False)

    def held(self, node: ast.AST, place: Place) -> Held:
        """Return what the names of a function hold, by what the function calls the models."""
        if node not in self._held:
            found = self._held[node] = {}
            # Twice: a loop may fill a list with what stands below it.
            for _ in range(2):
                for each in ast.walk(node):
                    self._note(each, found, place)
        return self._held[node]

    def given(self, function: Definition) -> frozenset[GivenParameters]:
        """Return what a function gives of the parameters of its arguments, or of its object."""
        node = function.node
        if not isinstance(node, _FUNCTIONS):
            return frozenset()
        if node not in self._given:
            self._given[node] = frozenset()  # what calls itself in circles is not known
            self._given[node] = frozenset(self._find_given(function))
        return self._given[node]

    def _find_given(self, function: Definition) -> Iterator[GivenParameters]:
        place = Place(function.module, function.name)
        held = self.held(function.node, place)
        for line in walked(function.node):
            value = line.value if isinstance(line, (ast.Return, ast.Yield)) else None
            if value is None:
                continue
            parts = value.elts if isinstance(value, ast.Tuple) else [value]
            size = len(parts) if isinstance(value, ast.Tuple) else 0
            names = [dotted(each) for each in parts]
            for number, part in enumerate(parts):
                for model in self.models(part, held, place):
                    root = _root(function.node, model)
                    if (
                        found := argument_at(function.node, root, is_method=function.owner is not None)
                    ) is not None:
                        yield (number if size else -1, size, *found)
                    elif size and root in names:
                        yield (number, size, PART, str(names.index(root)))

    def kept(self, owner: Definition) -> Iterator[tuple[int, str]]:
        """Yield the arguments of a class of whose parameters its objects keep some, by place and name.

        Not where another method never reads what is kept.
        """
        made = owner.module.definitions.get(f"{owner.name}.__init__")
        if made is not None:
            yield from self.kept_by(made)

    def kept_by(self, method: Definition) -> Iterator[tuple[int, str]]:
        """Yield the arguments of a method of whose parameters its object keeps some: ``ema.reset(net)``."""
        owner = method.owner
        if owner is None or not isinstance(owner.node, ast.ClassDef):
            return
        held = self.held(method.node, Place(method.module, method.name))
        for name, models in held.items():
            if not name.startswith("self.") or not _is_read_later(owner.node, method.node, name):
                continue
            for model in models:
                found = argument_at(method.node, _root(method.node, model), is_method=True)
                if found is not None and found[0] >= 0:
                    yield found

    def models(self, node: ast.AST, held: Held, place: Place) -> set[str]:
        """Return the models whose parameters an expression is, or holds."""
        if isinstance(node, (ast.Name, ast.Attribute)):
            return held.get(dotted(node) or "", set())
        if isinstance(node, ast.Call):
            return self._of_call(node, held, place)
        if isinstance(node, (*_COMPREHENSIONS, ast.DictComp)):
            return self._of_comprehension(node, held, place)
        if isinstance(node, ast.Subscript):
            return self.models(node.value, held, place) if isinstance(node.slice, ast.Slice) else set()
        return {each for part in _parts(node) for each in self.models(part, held, place)}

    def _of_call(self, call: ast.Call, held: Held, place: Place) -> set[str]:
        func, name = call.func, last_name(call.func)
        if isinstance(func, ast.Attribute) and func.attr in PARAMETERS:
            text = _text(func.value)
            return {text} if text else set()
        if isinstance(func, ast.Attribute) and func.attr in _VIEWS:
            return self.models(func.value, held, place)
        if name in SAME_PARAMETERS:
            return {each for arg in call.args for each in self.models(arg, held, place)}
        found: set[str] = set()
        for function in self.called(func, place):
            for part, _, number, argument in self.given(function) if function.name != place.scope else ():
                text = _text(given_at(call, number, argument)) if part == -1 else None
                found |= {text} if text else set()
        return found

    def _of_comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, held: Held, place: Place
    ) -> set[str]:
        gives = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        loop = node.generators[-1]
        names = _of_parameters(loop.target, loop.iter)
        if not any(names & set(_put(each)) for each in gives):
            return set()
        return self.models(loop.iter, held, place)

    def _note(self, node: ast.AST, held: Held, place: Place) -> None:
        if isinstance(node, ast.Assign):
            found = self.models(node.value, held, place)
            texts = (text for target in node.targets if (text := dotted(target)) is not None)
            for text in texts if found else ():
                held.setdefault(text, set()).update(found)
        elif isinstance(node, ast.AugAssign):
            found, text = self.models(node.value, held, place), dotted(node.target)
            if found and text:
                held.setdefault(text, set()).update(found)
        elif isinstance(node, ast.For) and (found := self.models(node.iter, held, place)):
            for text in (*_filled(node), *_yielded(node)):
                held.setdefault(text, set()).update(found)


def _filled(loop: ast.For) -> Iterator[str]:
    """Yield the lists and dicts that a loop puts parameters into that it goes through."""
    names = _of_parameters(loop.target, loop.iter)
    for node in (each for line in loop.body for each in ast.walk(line)):
        func = node.func if isinstance(node, ast.Call) else None
        if isinstance(node, ast.Call) and isinstance(func, ast.Attribute) and func.attr in _FILL:
            if any(names & set(_put(arg)) for arg in node.args):
                roots = [func.value.body, func.value.orelse] if isinstance(func.value, ast.IfExp) else []
                texts = map(_text, roots or [func.value])
                yield from (text for text in texts if text)
        elif isinstance(node, ast.Assign) and names & set(_put(node.value)):
            targets = (each for each in node.targets if isinstance(each, ast.Subscript))
            yield from (text for each in targets if (text := _text(each)))


def _yielded(loop: ast.For) -> Iterator[str]:
    """Yield the names of parameters that a loop of a generator gives one by one: ``yield p``."""
    names = _of_parameters(loop.target, loop.iter)
    for node in (each for line in loop.body for each in ast.walk(line)):
        given = node.value if isinstance(node, ast.Yield) else None
        yield from names & set(_put(given)) if given is not None else ()


def _text(node: ast.AST | None) -> str | None:
    """Return the name of a model, or of a list: of ``net`` for ``unwrap(net).layers[0]``."""
    rest: list[str] = []
    while node is not None:
        if isinstance(node, ast.Attribute):
            rest.append(node.attr)
            node = node.value
        elif isinstance(node, ast.Subscript):
            rest.clear()
            node = node.value
        elif isinstance(node, ast.Call):
            name = last_name(node.func)
            is_part = name == "getattr" or name.startswith("unwrap")
            func = node.func if isinstance(node.func, ast.Attribute) else None
            own = func.value if func is not None and func.attr in _FILL | _VIEWS else None
            rest.clear()
            node = node.args[0] if is_part and node.args else own
        else:
            break
    return ".".join((node.id, *reversed(rest))) if isinstance(node, ast.Name) else None


def _of_parameters(target: ast.expr, over: ast.expr) -> set[str]:
    """Return the names that stand for parameters in a loop: of ``n, p in m.named_parameters()`` the last."""
    names = [each.id for each in ast.walk(target) if isinstance(each, ast.Name)]
    calls = [each.func for each in ast.walk(over) if isinstance(each, ast.Call)]
    asked = {each.attr for each in calls if isinstance(each, ast.Attribute)}
    is_named = isinstance(target, ast.Tuple) and bool(asked & {"items", "named_parameters"})
    return set(names[-1:]) if is_named else set(names)


def _put(node: ast.AST) -> Iterator[str]:
    """Yield the names of what is put into a list as it is: ``p``, ``{"params": [p]}``, and no ``p.shape``."""
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Dict):
        for each in (*node.keys, *node.values):
            yield from _put(each) if each is not None else ()
    elif isinstance(node, (ast.List, ast.Set, ast.Tuple)):
        for each in node.elts:
            yield from _put(each)


def _parts(node: ast.AST) -> list[ast.expr]:
    """Return what a list is put together of."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [node.left, node.right]
    if isinstance(node, ast.IfExp):
        return [node.body, node.orelse]
    if isinstance(node, ast.Starred):
        return [node.value]
    if isinstance(node, ast.Dict):
        return list(node.values)
    return list(node.elts) if isinstance(node, (ast.List, ast.Tuple, ast.Set)) else []


def _root(function: ast.AST, model: str) -> str:
    """Return the name that a model is a part of: also of ``base = getattr(model, "base", model)``."""
    root = model.partition(".")[0]
    for _ in range(_DEEPEST):
        lines = (each for each in ast.walk(function) if isinstance(each, ast.Assign))
        values = [line.value for line in lines if any(dotted(target) == root for target in line.targets)]
        texts = {(_text(value) or "").partition(".")[0] for value in values}
        if len(texts) != 1 or texts <= {"", root}:
            return root
        root = texts.pop()
    return root


def _is_read_later(owner: ast.ClassDef, made: ast.AST, text: str) -> bool:
    """Tell whether another method than the constructor reads an attribute."""
    methods = (each for each in owner.body if isinstance(each, _FUNCTIONS) and each is not made)
    reads = (each for method in methods for each in ast.walk(method) if isinstance(each, ast.Attribute))
    return any(isinstance(each.ctx, ast.Load) and dotted(each) == text for each in reads)
