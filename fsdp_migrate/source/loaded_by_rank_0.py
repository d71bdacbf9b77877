"""Models of the project that rank 0 cannot load for all under Accelerate's FSDP2: it stops in ``prepare``.

That is where ``cpu_ram_efficient_loading`` is on: of BatchNorm's and other buffers, and of a model's own
parameters. Models of transformers mostly have neither.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from fsdp_migrate.adapters.conversion.project_ties import ties_anew, ties_in
from fsdp_migrate.errors import FSDPMigrateError
from fsdp_migrate.findings import listed
from fsdp_migrate.newer_syntax import parse_any
from fsdp_migrate.source.files import SETTINGS, find_sources, read_source
from fsdp_migrate.source.python.accelerators import is_accelerator, method_in, prepares


if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path


_GIVEN: Final = re.compile(r"cpu_ram_efficient_loading[\"']?\s*[:=\s]\s*[\"']?(\w+)")
# Of Accelerate's launcher, which turns it on where nothing is said; HF Trainer alone does not.
_LAUNCHED: Final = re.compile(r"distributed_type[\"']?\s*:\s*[\"']?FSDP\b|--use[_-]fsdp\b")
_CLASS: Final = re.compile(r"^class\s+(\w+)", re.MULTILINE)
_BUFFERED: Final = re.compile(r"(?:Sync)?BatchNorm(?:\d?d)?|spectral_norm")
_ON: Final = frozenset({"1", "on", "t", "true", "y", "yes"})
_DEEPEST: Final = 4
_MOST: Final = 3
_ANYBODYS: Final = frozenset({"base_model", "model", "module", "net", "network", "policy", "self"})
_LARGEST: Final = 1_000_000


class NotLoaded(NamedTuple):
    """Where Accelerate is given models that rank 0 cannot load for all, and what of them."""

    stops: tuple[str, ...] = ()
    """At what these hold its FSDP2 stops."""
    torn: tuple[str, ...] = ()
    """The weights that these tie it trains apart."""


def find_not_loaded(paths: Iterable[str | os.PathLike[str]]) -> NotLoaded:
    """Return where Accelerate is given models that rank 0 cannot load for all, and what of them.

    Args:
        paths: Files and folders. Where no settings of Accelerate's load so, there is nothing.

    Raises:
        SourceError: There is nothing at a path.

    Example:
        >>> find_not_loaded(["fsdp_migrate/source"])
        NotLoaded(stops=(), torn=())
    """
    found = list(paths)
    sources = dict(read(find_sources(found)))
    preparing = {path: code for path, code in sources.items() if prepares(code)}
    if not preparing:
        return NotLoaded()
    in_settings = loads_so(code for _, code in read(find_sources(found, SETTINGS)))
    if not in_settings and not says_so(preparing.values()):
        return NotLoaded()
    classes = _Classes(sources)
    others = _made_anywhere(sources, classes)
    given = [each for path, code in preparing.items() for each in _of_file(path, code, classes, others)]
    stops = [f"{place} has {listed(held, _MOST)}" for place, held, _ in given if held]
    torn = [f"{place} ties {listed(ties, _MOST)}" for place, _, ties in given if ties]
    return NotLoaded(tuple(dict.fromkeys(stops)), tuple(dict.fromkeys(torn)))


def read(files: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    """Yield files with their texts, but those that cannot be read, or are very large."""
    for path in files:
        text = _text_of(path)
        if text is not None:
            yield path, text


def _text_of(path: Path) -> str | None:
    try:
        return read_source(path) if path.stat().st_size <= _LARGEST else None
    except (FSDPMigrateError, OSError):
        return None


def loads_so(texts: Iterable[str]) -> bool:
    """Tell whether settings turn it on, or leave it to Accelerate's launcher."""
    return any(says_so([text]) or (not _GIVEN.search(text) and _LAUNCHED.search(text)) for text in texts)


def says_so(texts: Iterable[str]) -> bool:
    """Tell whether settings, or sources that hold them, turn it on themselves."""
    return any(value.lower() in _ON for text in texts for value in _GIVEN.findall(text))


class _Classes:
    """The classes of a project by their names, read where they are asked for."""

    def __init__(self, sources: Mapping[Path, str]) -> None:
        self._codes = {name: code for code in sources.values() for name in _CLASS.findall(code)}
        self._nodes: dict[str, ast.ClassDef] = {}
        self.names = tuple(self._codes)

    def __contains__(self, name: object) -> bool:
        return name in self._codes

    def held(
        self, name: str, depth: int = 0, *, is_part: bool = False, chosen: Mapping[str, str] | None = None
    ) -> list[str]:
        """Return what a model of this class holds that cannot be loaded.

        ``chosen``: the classes that a class below gives to names of the class, ``router = TopRouter``.
        """
        node = self._node(name) if depth < _DEEPEST else None
        if node is None:
            return []
        chosen = {**self._chosen(node), **(chosen or {})}
        bases = [ast.unparse(base).split(".")[-1] for base in node.bases]
        own = [] if is_part or any("PreTrained" in base for base in bases) else list(_own_parameters(node))
        found = [*own, *_buffers(node)]
        for base in bases:
            found += self.held(base, depth + 1, is_part=is_part, chosen=chosen)
        for call in (chosen.get(each, each) for each in _calls(node)):
            if call != name and call in self:
                found += self.held(call, depth + 1, is_part=True)
        return list(dict.fromkeys(found))

    def ties(self, name: str, depth: int = 0) -> list[str]:
        """Return the weights that a model of this class ties, and has no method to tie again."""
        node = self._node(name) if depth < _DEEPEST else None
        if node is None or (depth == 0 and ties_anew(node, self._around(node))):
            return []
        found = [f"`{tie.name}`" for tie in ties_in(node)]
        chosen = self._chosen(node)
        bases = (ast.unparse(base).split(".")[-1] for base in node.bases)
        for each in (*bases, *(chosen.get(call, call) for call in _calls(node))):
            if each != name and each in self:
                found += self.ties(each, depth + 1)
        return list(dict.fromkeys(found))

    def _around(self, node: ast.ClassDef) -> dict[str, ast.ClassDef]:
        """Return the classes of the project that one is made from."""
        left, found = [node], {node.name: node}
        while left:
            for base in left.pop().bases:
                above = self._node(ast.unparse(base).split(".")[-1])
                if above is not None and above.name not in found:
                    found[above.name] = above
                    left.append(above)
        return found

    def _chosen(self, node: ast.ClassDef) -> dict[str, str]:
        """Return the names of a class that stand for another class of the project."""
        lines = ((each.targets, each.value) for each in node.body if isinstance(each, ast.Assign))
        words = ((target, _word(value)) for targets, value in lines for target in targets)
        return {each.id: word for each, word in words if isinstance(each, ast.Name) and word in self}

    def _node(self, name: str) -> ast.ClassDef | None:
        if name not in self._nodes and name in self._codes:
            for each in parsed(self._codes[name]).body:
                if isinstance(each, ast.ClassDef):
                    self._nodes[each.name] = each
        return self._nodes.get(name)


def parsed(code: str) -> ast.Module:
    """Return a source's tree, which has nothing in it where it is no Python that is known here."""
    try:
        return parse_any(code)
    except (SyntaxError, ValueError, RecursionError):
        return ast.Module([], [])


def _calls(node: ast.AST) -> Iterator[str]:
    """Yield the last words of what is called: ``Critic`` of ``models.Critic(8)``."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call):
            yield _last(call)


def _last(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _text(node: ast.expr) -> str:
    return ast.unparse(node).strip("'\"")


def _own_parameters(node: ast.ClassDef) -> Iterator[str]:
    for each in ast.walk(node):
        if (
            isinstance(each, ast.Assign)
            and isinstance(each.value, ast.Call)
            and _last(each.value) == "Parameter"
        ):
            targets = (target for target in each.targets if isinstance(target, ast.Attribute))
            yield from (f"`{target.attr}`" for target in targets if ast.unparse(target.value) == "self")
        elif isinstance(each, ast.Call) and ast.unparse(each.func) == "self.register_parameter" and each.args:
            yield f"`{_text(each.args[0])}`"


def _buffers(node: ast.ClassDef) -> Iterator[str]:
    for each in ast.walk(node):
        if not isinstance(each, ast.Call):
            continue
        if _BUFFERED.fullmatch(_last(each)):
            yield f"{_last(each)}'s buffers"
        elif _last(each) == "register_buffer" and each.args:
            last = [*each.args[2:], *(word.value for word in each.keywords if word.arg == "persistent")]
            if not any(isinstance(value, ast.Constant) and value.value is False for value in last):
                yield f"the buffer `{_text(each.args[0])}`"


def _of_file(
    path: Path, code: str, classes: _Classes, others: Mapping[str, str]
) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield the models that are prepared in a file: where, what stops it, and what is tied."""
    tree = parsed(code)
    made, gives = list(_made(tree, classes)), _given_back(tree, classes)
    for call, function in _calls_in(tree):
        func = method_in(tree, call.func)
        if func is None or func.attr != "prepare" or not is_accelerator(ast.unparse(func.value), tree):
            continue
        for arg in call.args:
            called = _class_of(arg)
            is_asked = called is None and not _is_made_unseen(arg, function, tree, made)
            its = _classes_of(_word(arg), function, made, others) if is_asked else ()
            for name in its if called is None else gives.get(called, [called]):
                yield f"{path}:{call.lineno}: {name}", classes.held(name), classes.ties(name)


class _Made(NamedTuple):
    """A name, by its last word, that is given an object of a class; in which function, if in one."""

    word: str
    name: str
    function: ast.AST | None


def _classes_of(
    word: str, function: ast.AST | None, made: Iterable[_Made], others: Mapping[str, str]
) -> list[str]:
    """Return the classes that a name may be of: as the function itself makes it, or else the file."""
    its = [each for each in made if each.word == word]
    here = [each for each in its if each.function is function] or its
    told = [others[word]] if word in others else []
    return list(dict.fromkeys(each.name for each in here)) or told


def _is_made_unseen(arg: ast.expr, function: ast.AST | None, tree: ast.Module, made: list[_Made]) -> bool:
    """Tell whether what makes a model is not seen: a like name of another function says nothing of it."""
    if not isinstance(arg, ast.Name) or any(m.word == arg.id and m.function is function for m in made):
        return False
    for each, around in _with_functions(tree):
        if around is function and isinstance(each, ast.Assign):
            targets = {name.id for target in each.targets for name in _plain_names(target)}
            read = {name.id for name in ast.walk(each.value) if isinstance(name, ast.Name)}
            # What is moved or wrapped is what it was: `model = model.to(device)`.
            if arg.id in targets and arg.id not in read:
                return True
    return False


def _plain_names(target: ast.expr) -> Iterator[ast.Name]:
    parts = target.elts if isinstance(target, (ast.List, ast.Tuple)) else [target]
    return (each for each in parts if isinstance(each, ast.Name))


def _calls_in(node: ast.AST, function: ast.AST | None = None) -> Iterator[tuple[ast.Call, ast.AST | None]]:
    """Yield the calls below a node, each with the function that it stands in."""
    return ((each, around) for each, around in _with_functions(node, function) if isinstance(each, ast.Call))


def _with_functions(
    node: ast.AST, function: ast.AST | None = None
) -> Iterator[tuple[ast.AST, ast.AST | None]]:
    for child in ast.iter_child_nodes(node):
        yield child, function
        is_function = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
        yield from _with_functions(child, child if is_function else function)


def _made(tree: ast.Module, classes: _Classes) -> Iterator[_Made]:
    """Yield the names that are given a model of a class of the project, by a function of the file too."""
    gives = _given_back(tree, classes)
    for each, function in _with_functions(tree):
        value = each.value if isinstance(each, (ast.Assign, ast.keyword)) else None
        called = None if value is None else _class_of(value)
        if called is None:
            continue
        targets = each.targets if isinstance(each, ast.Assign) else []
        words = [_word(target) for target in targets]
        words += [each.arg] if isinstance(each, ast.keyword) and each.arg else []
        for name in [called] if called in classes else gives.get(called, ()):
            yield from (_Made(word, name, function) for word in words)


def _given_back(tree: ast.Module, classes: _Classes) -> dict[str, list[str]]:
    """Return the functions of a file that return what classes of the project make, with these."""
    found: dict[str, list[str]] = {}
    for each, function in _with_functions(tree):
        if isinstance(each, ast.Return) and isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            value = each.value
            parts = [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
            names = (_class_of(part) for part in parts if part is not None)
            its = [name for name in names if name is not None and name in classes]
            found.setdefault(function.name, []).extend(its)
    return found


def _word(node: ast.expr) -> str:
    return ast.unparse(node).split(".")[-1]


def _made_anywhere(sources: Mapping[Path, str], classes: _Classes) -> dict[str, str]:
    """Return the same of all files, as far as a name says it: one class, and no word that each model has."""
    found: dict[str, set[str]] = {}
    for code in sources.values():
        if any(f"{name}(" in code for name in classes.names):
            for each in _made(parsed(code), classes):
                found.setdefault(each.word, set()).add(each.name)
    return {word: min(names) for word, names in found.items() if len(names) == 1 and word not in _ANYBODYS}


def _class_of(value: ast.expr) -> str | None:
    """Return the last word of the class that is called: ``Critic`` of ``Critic(8).to(device)``."""
    while isinstance(value, ast.Call):
        inner = value.func.value if isinstance(value.func, ast.Attribute) else None
        if not isinstance(inner, ast.Call):
            return _last(value)
        value = inner
    return None
