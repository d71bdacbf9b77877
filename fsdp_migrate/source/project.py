"""The modules of a project, parsed as far as they are asked for, and what their imports stand for."""

from __future__ import annotations

import ast
import contextlib
import functools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from fsdp_migrate.errors import SourceError
from fsdp_migrate.newer_syntax import parse_any
from fsdp_migrate.source import catalog
from fsdp_migrate.source.files import read_source
from fsdp_migrate.source.loaded_by_path import loaded_by_path
from fsdp_migrate.source.package_folders import package_folders
from fsdp_migrate.source.python.walked import walked
from fsdp_migrate.source.word_index import WordIndex


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


Function = ast.FunctionDef | ast.AsyncFunctionDef
_DEEPEST = 5


@dataclass(eq=False)
class Definition:
    """A function or a class of a module, by the name that it has there: ``Trainer.fit``."""

    module: Module
    name: str
    node: Function | ast.ClassDef
    values: dict[str, list[ast.AST]] | None = field(default=None, repr=False)
    """Of a class that was asked about: what its attributes are set to."""

    @functools.cached_property
    def key(self) -> str:
        """What it is called in the whole project."""
        return f"{self.module.path}:{self.name}"

    @functools.cached_property
    def written(self) -> str:
        """Its source, without comments."""
        return ast.unparse(self.node)

    @property
    def owner(self) -> Definition | None:
        """The class that a method belongs to."""
        above = self.module.definitions.get(self.name.rpartition(".")[0])
        return above if above is not None and isinstance(above.node, ast.ClassDef) else None


@dataclass(eq=False)
class Module:
    """One source of a project."""

    path: Path
    parts: tuple[str, ...]
    tree: ast.Module
    imports: dict[str, str] = field(default_factory=dict)
    """What names are imported for, as it is written: ``..utils.wrap`` for ``from ..utils import wrap``."""
    other_imports: dict[str, list[str]] = field(default_factory=dict)
    """What names are imported for elsewhere in the same file: in another branch, or in another function."""
    stars: list[str] = field(default_factory=list)
    definitions: dict[str, Definition] = field(default_factory=dict)
    scopes: list[Any] = field(default_factory=list, repr=False)
    """What :func:`~fsdp_migrate.source.project_scopes.scopes_of` has found, as soon as it was asked."""

    def __post_init__(self) -> None:
        for node in walked(self.tree):
            if isinstance(node, ast.ImportFrom):
                self._note_from(node)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    first = alias.name.split(".")[0]
                    self.imports[alias.asname or first] = alias.name if alias.asname else first
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                self._note_by_name(node.targets, node.value)
        self.imports |= loaded_by_path(self.tree)
        self._note_definitions(self.tree.body, "")

    def _note_from(self, node: ast.ImportFrom) -> None:
        start = "." * node.level + (node.module or "")
        for alias in node.names:
            if alias.name == "*":
                self.stars.append(start)
            else:
                name, written = alias.asname or alias.name, f"{start}.{alias.name}"
                if self.imports.setdefault(name, written) != written:
                    self.other_imports.setdefault(name, []).append(self.imports[name])
                    self.imports[name] = written

    def _note_by_name(self, targets: list[ast.expr], call: ast.Call) -> None:
        """Note what ``fsdp = import_module("torch.distributed.fsdp")`` imports."""
        if dotted(call.func) in {"import_module", "importlib.import_module"} and len(call.args) == 1:
            module = call.args[0].value if isinstance(call.args[0], ast.Constant) else None
            for target in targets if isinstance(module, str) else ():
                self.imports.update({target.id: str(module)} if isinstance(target, ast.Name) else {})

    def _note_definitions(self, body: Iterable[ast.stmt], before: str) -> None:
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                name = f"{before}{node.name}"
                self.definitions.setdefault(name, Definition(self, name, node))
                self._note_definitions(node.body, f"{name}.")
            else:
                for inner in ("body", "orelse", "finalbody"):
                    self._note_definitions(getattr(node, inner, ()), before)
                for handler in getattr(node, "handlers", ()):
                    self._note_definitions(handler.body, before)


class Asked(NamedTuple):
    """A choice around a statement, and how it came out there."""

    test: ast.expr
    truth: bool
    choice: ast.AST
    is_in_loop: bool
    """Whether it may come out otherwise in another round."""

    @property
    def fact(self) -> tuple[ast.expr, bool]:
        """The test, and how it came out."""
        return self.test, self.truth


Start = tuple[int, int]
"""The line and the column at which a statement starts: several may share a line."""
NOWHERE: Start = (0, 0)


def start_of(node: ast.stmt | ast.expr) -> Start:
    """Return where a statement or an expression starts."""
    return node.lineno, node.col_offset


@dataclass(frozen=True, eq=False)
class Place:
    """Where an expression stands: its module, and the function or class around it by name."""

    module: Module
    scope: str
    start: Start = NOWHERE
    """Where its statement starts."""
    loops: tuple[ast.AST, ...] = ()
    blocks: tuple[int, ...] = ()
    """The blocks around it in its scope, from the outside in."""
    is_typed: bool = False
    """Whether it stands in a state dict context."""
    asked: tuple[Asked, ...] = ()
    """The choices around it in its scope, and those above it that else leave its block."""


@dataclass(eq=False)
class Project:
    """The sources that are looked at together."""

    texts: dict[Path, str]
    modules: dict[Path, Module | None] = field(default_factory=dict)
    _found: dict[tuple[Path, str], Definition | None] = field(default_factory=dict, repr=False)
    _methods: dict[tuple[str, str], Definition | None] = field(default_factory=dict, repr=False)
    _bases: dict[str, list[Definition]] = field(default_factory=dict, repr=False)
    _by_last: dict[str, list[tuple[tuple[str, ...], Path]]] = field(default_factory=dict, repr=False)
    _by_text: dict[str, Path] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for path in self.texts:
            self._by_text.setdefault(str(path), path)
            parts = parts_of(path)
            if parts:
                self._by_last.setdefault(parts[-1], []).append((parts, path))

    @classmethod
    def read(cls, paths: Iterable[Path]) -> Project:
        """Read the sources that can be read; what is wrong with the others is said where they are scanned."""
        texts = {}
        for path in paths:
            with contextlib.suppress(SourceError):
                texts[path] = read_source(path)
        return cls(texts)

    def module(self, path: Path) -> Module | None:
        """Return a module, parsed when it is first asked for; None if it is no Python."""
        if path not in self.modules:
            self.modules[path] = self._parse(path)
        return self.modules[path]

    def _parse(self, path: Path) -> Module | None:
        try:
            return Module(path, parts_of(path), parse_any(self.texts[path]))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None

    def parsed(self, paths: Iterable[Path]) -> Iterator[Module]:
        """Yield the modules of files, those left out that are no Python."""
        return (module for path in paths if (module := self.module(path)) is not None)

    @functools.cached_property
    def _words(self) -> WordIndex[Path]:
        return WordIndex(self.texts)

    def holding(self, names: Iterable[str]) -> list[Path]:
        """Return the files in whose text one of some names stands."""
        return self._words.holding(names)

    def importing(self, names: Iterable[str]) -> list[Path]:
        """Return the files that seem to import one of some names, which many others may have as well."""
        known = sorted(set(names))
        wanted = "|".join(map(re.escape, known))
        pattern = re.compile(
            rf"^[ \t]*(?:from\s.*\bimport\b.*\b(?:{wanted})\b|(?:{wanted}),?[ \t\r]*$)", re.MULTILINE
        )
        return [path for path in self.holding(known) if pattern.search(self.texts[path])]

    def find(self, module: Module, written: str, depth: int = 0) -> Definition | None:
        """Return the definition that an imported name stands for, through modules that only hand it on."""
        if depth > _DEEPEST or not written:
            return None
        if depth:
            return self._find(module, written, depth)
        known = module.path, written
        if known not in self._found:
            self._found[known] = self._find(module, written, depth)
        return self._found[known]

    def _find(self, module: Module, written: str, depth: int) -> Definition | None:
        start, _, name = written.rpartition(".")
        for path in self.paths(module, start):
            found = self._in(path, name, depth)
            if found is not None:
                return found
        # `from package.module import Class`, and then `Class.method`.
        owner = self.find(module, start, depth + 1) if start.strip(".") else None
        return owner.module.definitions.get(f"{owner.name}.{name}") if owner is not None else None

    def _in(self, path: Path, name: str, depth: int) -> Definition | None:
        module = self.module(path)
        if module is None:
            return None
        if name in module.definitions:
            return module.definitions[name]
        if name in module.imports:
            return self.find(module, module.imports[name], depth + 1)
        return self.by_star(module, name, depth)

    def by_star(self, module: Module, name: str, depth: int = 0) -> Definition | None:
        """Return the definition of a name that ``from module import *`` brings."""
        found = (self.find(module, f"{star}.{name}", depth + 1) for star in module.stars)
        return next((each for each in found if each is not None), None)

    def split(self, key: str) -> tuple[Path, str]:
        """Return the file and the name that a :attr:`Definition.key` is made of."""
        path, _, name = key.rpartition(":")
        return self._by_text[path], name

    def paths(self, module: Module, written: str) -> list[Path]:
        """Return the files that a module's name, as an import writes it, may be: the nearest first."""
        level = len(written) - len(written.lstrip("."))
        names = tuple(filter(None, written.lstrip(".").split(".")))
        if level:
            base = module.parts if module.path.stem == "__init__" else module.parts[:-1]
            # `from . import x` is written as `..x`: with one dot more than it means.
            for up in (level, level - 1):
                whole = (*base[: len(base) - up + 1], *names) if up else ()
                found = (
                    [path for parts, path in self._by_last.get(whole[-1], ()) if parts == whole]
                    if whole
                    else []
                )
                if found:
                    return found
            return []
        if not names:
            return []
        for whole in self._whole_names(names):
            own = [path for parts, path in self._by_last.get(whole[-1], ()) if parts == whole]
            if own:
                return own
        ending = [(p, path) for p, path in self._by_last.get(names[-1], ()) if p[-len(names) :] == names]
        return [
            path
            for _, path in sorted(ending, key=lambda each: (-_common(each[0], module.parts), len(each[0])))
        ][:1]

    @functools.cached_property
    def _packages(self) -> dict[tuple[str, ...], Path]:
        return package_folders(self.texts)

    def _whole_names(self, names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        """Yield the names of a module by the folder that the project's packaging gives its package."""
        for package, folder in sorted(self._packages.items(), key=lambda each: -len(each[0])):
            if names[: len(package)] == package:
                yield (*folder.parts[1:], *names[len(package) :])

    # What the names of a place stand for.

    def qualified(self, text: str, place: Place) -> str:
        """Return what an imported name, or an attribute of it, is called as the import writes it."""
        return "" if text.partition(".")[0] in place.module.definitions else self.imported(text, place)

    @staticmethod
    def imported(text: str, place: Place) -> str:
        """Return the same of a name that the file may define itself, where the import fails."""
        root, _, rest = text.partition(".")
        written = place.module.imports.get(root, "")
        return f"{written}.{rest}" if written and rest else written

    def named(self, text: str, place: Place) -> Definition | None:
        """Return the function or class that a name stands for at a place."""
        scope = place.scope
        while scope:
            inner = place.module.definitions.get(f"{scope}.{text}")
            if inner is not None and not isinstance(self.node(place.module, scope), ast.ClassDef):
                return inner
            scope = scope.rpartition(".")[0]
        if text in place.module.definitions:
            return place.module.definitions[text]
        written = self.qualified(text, place)
        definition = self.find(place.module, written) if written else None
        return definition or (None if "." in text else self.by_star(place.module, text))

    def named_elsewhere(self, text: str, place: Place) -> Iterator[Definition]:
        """Yield what a name stands for by other imports of it: ``try: ... except ImportError: ...``."""
        root, _, rest = text.partition(".")
        is_both = root in place.module.definitions and root in place.module.imports
        own = [place.module.imports[root]] if is_both else []
        for written in (*own, *place.module.other_imports.get(root, ())):
            found = self.find(place.module, f"{written}.{rest}" if rest else written)
            yield from () if found is None else (found,)

    def own(self, rest: str, place: Place) -> Definition | None:
        """Return the method, or the inner class, that ``self.rest`` stands for at a place."""
        owner = self.class_of(place)
        found = self.method(owner, rest) if "." not in rest else None
        return found or (owner.module.definitions.get(f"{owner.name}.{rest}") if owner is not None else None)

    @staticmethod
    def node(module: Module, name: str) -> ast.AST | None:
        """Return the definition of a name of a module, as it was parsed."""
        found = module.definitions.get(name)
        return found.node if found is not None else None

    def class_of(self, place: Place) -> Definition | None:
        """Return the class around a place."""
        scope = place.scope
        while scope:
            found = place.module.definitions.get(scope)
            if found is not None and isinstance(found.node, ast.ClassDef):
                return found
            scope = scope.rpartition(".")[0]
        return None

    def method(self, owner: Definition | None, name: str, depth: int = 0) -> Definition | None:
        """Return the method of a class, or of one that it derives from."""
        if owner is None or depth > 4:
            return None
        if depth:
            return self._method(owner, name, depth)
        known = owner.key, name
        if known not in self._methods:
            self._methods[known] = self._method(owner, name, depth)
        return self._methods[known]

    def _method(self, owner: Definition, name: str, depth: int) -> Definition | None:
        own = owner.module.definitions.get(f"{owner.name}.{name}")
        if own is not None:
            return own
        found = (self.method(base, name, depth + 1) for base in self.bases(owner))
        return next((each for each in found if each is not None), None)

    def bases(self, owner: Definition) -> list[Definition]:
        """Return the classes of the project that a class derives from."""
        if owner.key not in self._bases:
            self._bases[owner.key] = list(self._find_bases(owner))
        return self._bases[owner.key]

    def _find_bases(self, owner: Definition) -> Iterator[Definition]:
        # What looks like a class by its name may be a function: `Base.kinds` of `@Base.kinds.getter`.
        for base in owner.node.bases if isinstance(owner.node, ast.ClassDef) else ():
            text = dotted(base)
            if text is None:
                continue
            own = owner.module.definitions.get(text)
            written = self.qualified(text, Place(owner.module, ""))
            found = own or (self.find(owner.module, written) if written else None)
            if found is not None and found is not owner and isinstance(found.node, ast.ClassDef):
                yield found

    def is_subclass(self, owner: Definition, depth: int = 0) -> bool:
        """Tell whether a class derives from FSDP1's, also by another class of the project."""
        if not isinstance(owner.node, ast.ClassDef):
            return False
        texts = filter(None, map(dotted, owner.node.bases))
        known = (self.qualified(text, Place(owner.module, "")) for text in texts)
        if any(catalog.fsdp1_name(each) == catalog.FSDP for each in known):
            return True
        return depth < _DEEPEST and any(self.is_subclass(base, depth + 1) for base in self.bases(owner))


def is_a_test(path: Path) -> bool:
    """Tell whether a file holds tests, by its own name and its folder's: not by where the project lies."""
    return path.name.startswith("test_") or path.name.endswith("_test.py") or path.parent.name == "tests"


def parts_of(path: Path) -> tuple[str, ...]:
    """Return the dotted name of a file, as far up as there are folders: ``src.package.module``."""
    parts = path.absolute().with_suffix("").parts[1:]
    return parts[:-1] if parts and parts[-1] == "__init__" else parts


def _common(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    """Return how many folders two modules share, from the root."""
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count


def dotted(node: ast.expr) -> str | None:
    """Return ``a.b.c`` for a name or a chain of attributes, or None for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        start = dotted(node.value)
        return None if start is None else f"{start}.{node.attr}"
    is_super = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"
    return "super()" if is_super else None


def last_name(node: ast.expr) -> str:
    """Return ``c`` for ``a.b.c``, and nothing for what is no name.

    Example:
        >>> [last_name(ast.parse(each, mode="eval").body) for each in ("torch.save", "save", "f().save")]
        ['save', 'save', '']
    """
    return (dotted(node) or "").rpartition(".")[2]


def is_seen_alone(definition: Definition, call: ast.Call, place: Place) -> bool:
    """Tell whether a call is followed where its file is looked at by itself."""
    text = dotted(call.func) or ""
    if isinstance(call.func, ast.Call):
        return False  # `getattr(callback, event)(model)`
    is_called = definition.name.endswith((".__call__", ".forward")) and not text.endswith("forward")
    is_function = not isinstance(definition.node, ast.ClassDef) and not is_called
    return definition.module is place.module and is_function and "." not in text.removeprefix("self.")


def either(parts: list[tuple[ast.expr, set[str]]]) -> set[str]:
    """Return what one of several expressions may be: also another, if one makes an object of its own."""
    found = {kind for _, kinds in parts for kind in kinds}
    calls = (part.func for part, kinds in parts if isinstance(part, ast.Call) and not kinds & {"fsdp"})
    names = (last_name(func) for func in calls)
    return found | ({"other"} if "fsdp" in found and any(name[:1].isupper() for name in names) else set())
