"""Classes of optimizers that a call does not name: out of a dict or a registry, by a function, of a config.

``registry[config.type][0](model.parameters())``, with ``registry[name] = (cls.optimizer_class, cls)`` in a
decorator of another file, and ``optimizer_class = torch.optim.LBFGS`` in the class below it.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source.optimizer_classes import Made, note
from fsdp_migrate.source.project import Definition, Place, dotted, is_a_test, last_name
from fsdp_migrate.source.project_globals import Globals
from fsdp_migrate.source.project_kinds import ProjectKinds
from fsdp_migrate.source.project_names import targets_of
from fsdp_migrate.source.python.links import NOTHING
from fsdp_migrate.source.python.walked import walked
from fsdp_migrate.source.registered_optimizers import derives_from_anothers, registered


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fsdp_migrate.source.project import Module, Project
    from fsdp_migrate.source.python.links import Links

    Called = Callable[[ast.expr, Place], Iterator[Definition]]

Keys = tuple[str | None, ...]
"""What is looked up in dicts, the first in the outermost; None of what is not known before it runs."""


_DEEPEST: Final = 8
_MOST_KEYS: Final = 2
_GIVES_PARAMETERS: Final = re.compile(r"param|group", re.IGNORECASE)
_HOLDS_A_CLASS: Final = re.compile(r"optim|class|cls|type", re.IGNORECASE)
_WORDS: Final = re.compile(r"param|optim")
_NAMED: Final = re.compile(r"optim", re.IGNORECASE)
_GETS: Final = re.compile(r"^(?:get|lookup|pop|resolve)(?:_|$)")
_LOOKS_UP: Final = frozenset({"get", "pop"})
_PUTS: Final = frozenset({"add", "register", "setdefault", "update"})
_DICTS: Final = frozenset({"OrderedDict", "collections.OrderedDict", "dict"})
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


def with_chosen_optimizers(project: Project, links: dict[Path, Links]) -> dict[Path, Links]:
    """Tell the files that sharded models reach which classes the optimizers made there may be of."""
    told, chosen = dict(links), _Chosen(project)
    # Tests, of a package that was copied in perhaps, choose among what no run of the project's makes.
    for path in (each for each in links if not is_a_test(each)):
        module = project.module(path) if _WORDS.search(project.texts.get(path, "")) else None
        found = {} if module is None else dict(chosen.in_file(module))
        if found:
            told[path] = replace(told[path], chosen_optimizers=found)
        for definition in () if module is None else registered(project, module, told[path]):
            chosen.note(definition)
    for path, names in chosen.foreign.items():
        told[path] = replace(told.get(path, NOTHING), foreign_optimizers=frozenset(names))
    for path, classes in chosen.made.classes.items():
        known = told.get(path, NOTHING)
        wholes = {name for name in classes if name not in known.optimizers or name in known.whole_optimizers}
        told[path] = replace(
            known, optimizers=known.optimizers | classes, whole_optimizers=known.whole_optimizers | wholes
        )
    return told


@dataclass(eq=False)
class _Chosen:
    """Finds the classes. Reads only, but for what it notes of the project's own."""

    project: Project
    made: Made = field(default_factory=Made)
    foreign: dict[Path, set[str]] = field(default_factory=dict)
    """Those of the project's classes that derive from another package's."""
    _is_named_so: bool = field(default=False, repr=False)
    """Whether what is looked at is called as what holds optimizers is."""
    _seen: set[tuple[int, Keys]] = field(default_factory=set, repr=False)

    def __post_init__(self) -> None:
        self._globals = Globals(self.project)
        self._called: Called = ProjectKinds(self.project).called

    def in_file(self, module: Module) -> Iterator[tuple[tuple[int, int], frozenset[str]]]:
        """Yield where something is called that may be one of other packages' classes, with these."""
        for node in walked(module.tree):
            if not isinstance(node, ast.Call) or not node.args or self._is_named(node.func, module):
                continue
            if _GIVES_PARAMETERS.search(ast.unparse(node.args[0])):
                self._seen.clear()
                self._is_named_so = _NAMED.search(ast.unparse(node.func)) is not None
                found = {name for name in self._of(node.func, Place(module, ""), 0) if self._is_foreign(name)}
                if found:
                    yield (node.func.lineno, node.func.col_offset + 1), frozenset(found)

    def note(self, definition: Definition) -> None:
        """Note a class that is one of optimizers: by what it derives from, torch's or another package's."""
        is_torchs = note(definition, self._called, self.made.classes)
        if not is_torchs and derives_from_anothers(definition, self._called):
            self.foreign.setdefault(definition.module.path, set()).add(definition.name)

    def _note_chosen(self, definition: Definition) -> None:
        """Note a class that a dict holds, or a function gives: another package's base alone shows nothing."""
        if self._is_named_so:
            self.note(definition)
        else:
            note(definition, self._called, self.made.classes)

    def _is_foreign(self, name: str) -> bool:
        return name.rpartition(".")[2][:1].isupper() and "." in name

    def _is_named(self, func: ast.expr, module: Module) -> bool:
        """Tell whether it is a class or a function by its name, which is known without more."""
        text = dotted(func)
        root = (text or "").partition(".")[0]
        is_own = text is not None and self.project.named(text, Place(module, "")) is not None
        return is_own or (
            root in module.imports and self._globals.origin(text or "", Place(module, "")) is None
        )

    def _of(self, value: ast.expr, place: Place, depth: int, keys: Keys = ()) -> Iterator[str]:
        """Yield the dotted names, as imports write them, of what an expression may stand for, or hold.

        ``keys``: what is looked up in it: of ``TABLE["adam"]`` the class at this key alone.
        """
        keys = keys[:_MOST_KEYS]  # of what is bound to its own items there would be no end
        if depth > _DEEPEST or (id(value), keys) in self._seen:
            return
        self._seen.add((id(value), keys))
        for each, left in _parts(value, keys):
            yield from self._of(each, place, depth + 1, left)
        if isinstance(value, ast.Call):
            yield from self._of_call(value, place, depth, keys)
        elif isinstance(value, (ast.Name, ast.Attribute)):
            yield from self._of_name(value, place, depth, keys)

    def _of_call(self, call: ast.Call, place: Place, depth: int, keys: Keys) -> Iterator[str]:
        """Yield what a function of the project gives, what is had of a dict, and what is made a partial."""
        func = call.func
        last = func.attr if isinstance(func, ast.Attribute) else (dotted(func) or "")
        if isinstance(func, ast.Attribute) and _GETS.match(last):
            looked_up = _key(call.args[0]) if last in _LOOKS_UP and call.args else None
            yield from self._of(func.value, place, depth + 1, (looked_up, *keys))
        # What is given may be the dict: `get_from_registry(name, optimizers)`.
        for given in call.args if last == "partial" or _GETS.match(last) else ():
            yield from self._of(given, place, depth + 1)
        for definition in self._called(func, place):
            if isinstance(definition.node, _FUNCTIONS):
                inner = Place(definition.module, definition.name)
                for node in ast.walk(definition.node):
                    if isinstance(node, ast.Return) and node.value is not None:
                        yield from self._of(node.value, inner, depth + 1, keys)

    def _of_name(
        self, value: ast.Name | ast.Attribute, place: Place, depth: int, keys: Keys
    ) -> Iterator[str]:
        text = dotted(value) or ""
        if (definition := self.project.named(text, place) if text else None) is not None:
            if isinstance(definition.node, ast.ClassDef):
                self._note_chosen(definition)
            return
        root = text.partition(".")[0]
        origin = self._globals.origin(text, place) if text else None
        if origin is not None:
            path, _ = self.project.split(f"{origin[0]}")
            module = self.project.module(path)
            if module is not None:
                yield from self._bound(origin[1], module, depth, keys)
        elif root and root in place.module.imports:
            yield self.project.qualified(text, place)
        elif isinstance(value, ast.Attribute):
            if _HOLDS_A_CLASS.search(value.attr):
                yield from self._of_attribute(value.attr, depth, keys)
        else:
            yield from self._bound(text, place.module, depth, keys)

    def _of_attribute(self, name: str, depth: int, keys: Keys) -> Iterator[str]:
        """Yield what classes and objects have by a name: ``optimizer_class = torch.optim.LBFGS``."""
        for module in self.project.parsed(self.project.holding([name])):
            for node in walked(module.tree):
                last = {last_name(each) for each in targets_of(node)}
                value = getattr(node, "value", None)
                if name in last and isinstance(value, ast.expr):
                    yield from self._of(value, Place(module, ""), depth + 1, keys)

    def _bound(self, name: str, module: Module, depth: int, keys: Keys) -> Iterator[str]:
        """Yield what a name of a file is bound to, and what it is filled with, wherever that is."""
        for node in walked(module.tree):
            value = getattr(node, "value", None)
            for target in targets_of(node) if isinstance(value, ast.expr) else ():
                is_filled = isinstance(target, ast.Subscript)
                whole = target.value if isinstance(target, ast.Subscript) else target
                names = whole.elts if isinstance(whole, (ast.Tuple, ast.List)) else [whole]
                if isinstance(target, ast.Subscript) and not _may_be_at(keys, target.slice):
                    continue
                if isinstance(value, ast.expr) and name in map(dotted, names):
                    left = keys[1:] if is_filled else keys
                    yield from self._of(value, Place(module, ""), depth + 1, left)
                    yield from self._put_in(value, module, depth) if is_filled else ()
            for given, left in _registered(node, name, keys) if isinstance(node, ast.Call) else ():
                yield from self._of(given, Place(module, ""), depth + 1, left)

    def _put_in(self, value: ast.expr, module: Module, depth: int) -> Iterator[str]:
        """Yield what the function around is given that puts it into a dict: ``register("x")(Class)``."""
        around = [
            each
            for each in module.definitions.values()
            if isinstance(each.node, _FUNCTIONS)
            and each.node.lineno <= value.lineno <= (each.node.end_lineno or 0)
        ]
        taken = {each.arg for function in around for each in _parameters(function.node)}
        names = {function.name for function in around if "." not in function.name}
        if not names or taken.isdisjoint(each.id for each in ast.walk(value) if isinstance(each, ast.Name)):
            return
        for path in self.project.holding(names):
            other = self.project.module(path)
            for node in walked(other.tree) if other is not None else ():
                if other is not None:
                    yield from self._given_to(names, node, other, depth)

    def _given_to(self, names: set[str], node: ast.AST, module: Module, depth: int) -> Iterator[str]:
        """Yield what is given to one of some functions, and note the project's own that it stands above."""
        if isinstance(node, ast.Call) and _is_of(names, node):
            for given in node.args:
                yield from self._of(given, Place(module, ""), depth + 1)
        elif isinstance(node, ast.ClassDef) and any(_is_of(names, each) for each in node.decorator_list):
            definition = self.project.named(node.name, Place(module, ""))
            if definition is not None and isinstance(definition.node, ast.ClassDef):
                self._note_chosen(definition)


def _parameters(node: ast.AST) -> list[ast.arg]:
    return [*node.args.posonlyargs, *node.args.args] if isinstance(node, _FUNCTIONS) else []


def _is_of(names: set[str], call: ast.expr) -> bool:
    """Tell whether it is one of some functions, or what that gives: ``register``, ``register("x")``."""
    func = call
    while isinstance(func, ast.Call):
        func = func.func
    return last_name(func) in names


def _registered(call: ast.Call, name: str, keys: Keys) -> Iterator[tuple[ast.expr, Keys]]:
    """Yield what a call puts into an object: ``table.register("x", Class)``, ``update(x=Class)``."""
    func = call.func.func if isinstance(call.func, ast.Call) else call.func
    if not isinstance(func, ast.Attribute) or func.attr not in _PUTS or dotted(func.value) != name:
        return
    if func.attr != "update":
        # What is no dict may write its keys otherwise: `register("AdamW", AdamW)`, `get("adamw")`.
        is_dict = func.attr == "setdefault" and bool(call.args)
        if not is_dict or _may_be_at(keys, call.args[0]):
            yield from ((each, keys[1:]) for each in (*call.args, *(k.value for k in call.keywords)))
        return
    yield from _given_by_name(call, keys)


def _given_by_name(call: ast.Call, keys: Keys) -> Iterator[tuple[ast.expr, Keys]]:
    """Yield what ``dict(others, x=Class)`` and ``update(x=Class)`` put into a dict."""
    yield from ((each, keys) for each in call.args)
    for each in call.keywords:
        if each.arg is None or not keys or keys[0] in {None, each.arg}:
            yield each.value, keys if each.arg is None else keys[1:]


def _choices(value: ast.expr) -> list[ast.expr]:
    """Return what an expression is one of, or of dicts all of: ``OURS | {"lbfgs": LBFGS}``."""
    if isinstance(value, ast.IfExp):
        return [value.body, value.orelse]
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr):
        return [value.left, value.right]
    return value.values if isinstance(value, ast.BoolOp) else []


def _parts(value: ast.expr, keys: Keys) -> Iterator[tuple[ast.expr, Keys]]:
    """Yield what an expression is one of, or holds, each with what is looked up in that."""
    yield from ((each, keys) for each in _choices(value))
    if isinstance(value, ast.Call) and dotted(value.func) in _DICTS:
        yield from _given_by_name(value, keys)
    elif isinstance(value, (ast.Tuple, ast.List)):
        yield from ((each, keys[1:]) for each in value.elts)
    elif isinstance(value, ast.Dict):
        for key, each in zip(value.keys, value.values, strict=True):
            if key is None:  # `**others`
                yield each, keys
            elif _may_be_at(keys, key):
                yield each, keys[1:]
    elif isinstance(value, ast.Subscript):
        yield value.value, (_key(value.slice), *keys)


def _key(node: ast.expr) -> str | None:
    """Return a key that stands in the source: of ``TABLE["adam"]``, and not of ``TABLE[config.name]``."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _may_be_at(keys: Keys, key: ast.expr) -> bool:
    """Tell whether what is looked up may be what has a key."""
    return not keys or None in {keys[0], _key(key)} or keys[0] == _key(key)
