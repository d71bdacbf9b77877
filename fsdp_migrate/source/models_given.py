"""The classes of a project that names hold models of: as their files make them, and calls give them."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from fsdp_migrate.newer_syntax import parse_any
from fsdp_migrate.source.python.walked import last_word


if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path


_ANYBODYS: Final = frozenset({"base_model", "model", "module", "net", "network", "policy", "self"})
_FARTHEST: Final = 3
"""From call to call, back to where a model is made."""
_MAKES: Final = "__init__"
_SUPER: Final = f"super().{_MAKES}"
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)

_Function = ast.FunctionDef | ast.AsyncFunctionDef


class _Made(NamedTuple):
    """A name, by its last word, that is given an object of a class; in which function, if in one."""

    word: str
    name: str
    function: _Function | None


class _Taker(NamedTuple):
    """A function that is given a model by a parameter, and the class that it is a method of, or None."""

    function: _Function
    parameter: str
    owner: ast.ClassDef | None


class ModelsGiven:
    """Answers of which classes of a project the models in its files are. Reads texts only.

    Args:
        sources: The texts of its files.
        classes: The names of its classes.

    Example:
        >>> from pathlib import Path
        >>> models = ModelsGiven({Path("a.py"): "net = Net()"}, {"Net"})
        >>> models.classes_of(ast.parse("net", mode="eval").body, None, Path("a.py"))
        ['Net']
    """

    def __init__(self, sources: Mapping[Path, str], classes: Collection[str]) -> None:
        self._sources, self._classes = sources, classes
        self._trees: dict[Path, ast.Module] = {}
        self._others = self._made_anywhere()

    def tree(self, path: Path) -> ast.Module:
        """Return the tree of a file of the project."""
        if path not in self._trees:
            self._trees[path] = parsed(self._sources[path])
        return self._trees[path]

    def classes_of(self, node: ast.expr, function: _Function | None, path: Path) -> list[str]:
        """Return the classes that a model may be of which stands in a function of a file."""
        if (called := class_of(node)) is not None:
            return _given_back(self.tree(path), self._classes).get(called, [called])
        if self._is_made_unseen(node, function, self.tree(path)):
            return []
        word = word_of(node)
        told = [self._others[word]] if word in self._others else []
        return self._of_name(node, function, path) or told

    def _is_made_unseen(self, node: ast.expr, function: _Function | None, tree: ast.Module) -> bool:
        """Tell whether what makes a model is not seen: a like name of another function says nothing of it."""
        made = (each for each in _made(tree, self._classes) if each.function is function)
        if not isinstance(node, ast.Name) or any(each.word == node.id for each in made):
            return False
        lines = (each for each, around in _with_functions(tree) if around is function)
        for each in lines:
            if isinstance(each, ast.Assign):
                targets = {name.id for target in each.targets for name in _plain_names(target)}
                read = {name.id for name in ast.walk(each.value) if isinstance(name, ast.Name)}
                # What is moved or wrapped is what it was: `model = model.to(device)`.
                if node.id in targets and node.id not in read:
                    return True
        return False

    def _of_name(self, node: ast.expr, function: _Function | None, path: Path, depth: int = 0) -> list[str]:
        """Return them of a name: as the function itself makes it, or else as calls give it, and the file."""
        its = [each for each in _made(self.tree(path), self._classes) if each.word == word_of(node)]
        found = [each.name for each in its if each.function is function]
        if not found:
            takers = _takers(node, function, self.tree(path)) if depth < _FARTHEST else ()
            found = [name for taker in takers for name in self._given_to(taker, path, depth)]
            # Another function's `model` is not the parameter, but another method may set `self.model`.
            found += [each.name for each in its if not found or not isinstance(node, ast.Name)]
        return list(dict.fromkeys(found))

    def _given_to(self, taker: _Taker, path: Path, depth: int) -> Iterator[str]:
        """Yield the classes of what the calls of a function give to its parameter."""
        names = self._called_by(taker)
        for other, code in self._calling(names, path):
            tree = self.tree(other)
            for call, around in calls_in(tree):
                is_its = last_word(call.func) in names or (
                    _SUPER in code and _is_of_heir(call, around, tree, names)
                )
                given = _given_by(call, taker) if is_its else None
                if given is None:
                    continue
                if (called := class_of(given)) is None:
                    yield from self._of_name(given, around, other, depth + 1)
                elif called in self._classes:
                    yield called
                else:
                    yield from _given_back(tree, self._classes).get(called, ())

    def _called_by(self, taker: _Taker) -> set[str]:
        """Return the names that call a function: its class's too, and those of heirs that leave it so."""
        owner = taker.owner
        if owner is None or taker.function.name != _MAKES:
            return {taker.function.name}
        names = {owner.name}
        for _ in range(_FARTHEST):
            paths = [path for path, code in self._sources.items() if any(name in code for name in names)]
            names |= {
                each.name
                for path in paths
                for each in self.tree(path).body
                if isinstance(each, ast.ClassDef) and _is_below(each, names) and _maker(each) is None
            }
        return names

    def _calling(self, names: set[str], path: Path) -> Iterator[tuple[Path, str]]:
        """Yield the files that may call what has some names in a file; others may have their own of these."""
        line = re.compile(rf"^[ \t]*(?:async[ \t]+)?(?:class|def)[ \t]+(?:{'|'.join(names)})\b", re.MULTILINE)
        word = path.parent.name if path.stem == _MAKES else path.stem
        imports = re.compile(rf"^[ \t]*(?:from|import)\b[^\n]*\b{re.escape(word)}\b", re.MULTILINE)
        is_one = sum(len(line.findall(code)) for code in self._sources.values()) == len(names)
        for other, code in self._sources.items():
            if (other == path or is_one or imports.search(code)) and any(name in code for name in names):
                yield other, code

    def _made_anywhere(self) -> dict[str, str]:
        """Return the classes of names that say it themselves: of one class, no word that each model has."""
        found: dict[str, set[str]] = {}
        for path, code in self._sources.items():
            if any(f"{name}(" in code for name in self._classes):
                for each in _made(self.tree(path), self._classes):
                    found.setdefault(each.word, set()).add(each.name)
        return {
            word: min(names) for word, names in found.items() if len(names) == 1 and word not in _ANYBODYS
        }


def _plain_names(target: ast.expr) -> Iterator[ast.Name]:
    parts = target.elts if isinstance(target, (ast.List, ast.Tuple)) else [target]
    return (each for each in parts if isinstance(each, ast.Name))


def _is_of_heir(call: ast.Call, function: _Function | None, tree: ast.Module, names: Collection[str]) -> bool:
    """Tell whether a call is ``super().__init__(..)`` of a class that is made from one of some names."""
    if ast.unparse(call.func) != _SUPER:
        return False
    owner = _owner_of(function, tree)
    return owner is not None and _is_below(owner, names)


def _is_below(node: ast.ClassDef, names: Collection[str]) -> bool:
    return any(word_of(base) in names for base in node.bases)


def _takers(node: ast.expr, function: _Function | None, tree: ast.Module) -> Iterator[_Taker]:
    """Yield the functions that a parameter gives a model: ``model``, or what `self.model` is set to."""
    owner = _owner_of(function, tree)
    if isinstance(node, ast.Name):
        if function is not None and node.id in _parameters(function):
            yield _Taker(function, node.id, owner)
        return
    maker = _maker(owner) if owner is not None else None
    if maker is None or ast.unparse(node) != f"self.{word_of(node)}":
        return
    for each in ast.walk(maker):
        targets = each.targets if isinstance(each, ast.Assign) else []
        if isinstance(each, ast.Assign) and ast.unparse(node) in map(ast.unparse, targets):
            value = _moved(each.value)
            if isinstance(value, ast.Name) and value.id in _parameters(maker):
                yield _Taker(maker, value.id, owner)


def _moved(value: ast.expr) -> ast.expr:
    """Return ``model`` of ``model.to(device)``."""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        value = value.func.value
    return value


def _owner_of(function: _Function | None, tree: ast.Module) -> ast.ClassDef | None:
    classes = (each for each in ast.walk(tree) if isinstance(each, ast.ClassDef))
    return next((each for each in classes if function in each.body), None)


def _maker(owner: ast.ClassDef) -> _Function | None:
    return next((each for each in owner.body if isinstance(each, _FUNCTIONS) and each.name == _MAKES), None)


def _parameters(function: _Function) -> list[str]:
    args = function.args
    return [each.arg for each in (*args.posonlyargs, *args.args, *args.kwonlyargs)]


def _given_by(call: ast.Call, taker: _Taker) -> ast.expr | None:
    """Return what a call gives to the parameter, or None where it is not seen."""
    named = {each.arg: each.value for each in call.keywords}
    if taker.parameter in named:
        return named[taker.parameter]
    args = taker.function.args
    order = [each.arg for each in (*args.posonlyargs, *args.args)]
    is_static = any(ast.unparse(each) == "staticmethod" for each in taker.function.decorator_list)
    place = order.index(taker.parameter) if taker.parameter in order else len(order)
    place -= taker.owner is not None and not is_static
    before = call.args[: place + 1]
    is_seen = 0 <= place < len(call.args) and not any(isinstance(each, ast.Starred) for each in before)
    return call.args[place] if is_seen else None


def parsed(code: str) -> ast.Module:
    """Return a source's tree, which has nothing in it where it is no Python that is known here.

    Example:
        >>> parsed("def f(:").body
        []
    """
    try:
        return parse_any(code)
    except (SyntaxError, ValueError, RecursionError):
        return ast.Module([], [])


def calls_in(node: ast.AST) -> Iterator[tuple[ast.Call, _Function | None]]:
    """Yield the calls below a node, each with the function that it stands in.

    Example:
        >>> [(call.func.id, function.name) for call, function in calls_in(ast.parse("def f(): g()"))]
        [('g', 'f')]
    """
    return ((each, around) for each, around in _with_functions(node) if isinstance(each, ast.Call))


def _with_functions(
    node: ast.AST, function: _Function | None = None
) -> Iterator[tuple[ast.AST, _Function | None]]:
    for child in ast.iter_child_nodes(node):
        yield child, function
        yield from _with_functions(child, child if isinstance(child, _FUNCTIONS) else function)


def _made(tree: ast.Module, classes: Collection[str]) -> Iterator[_Made]:
    """Yield the names that are given a model of a class of the project, by a function of the file too."""
    gives = _given_back(tree, classes)
    for each, function in _with_functions(tree):
        value = each.value if isinstance(each, (ast.Assign, ast.keyword)) else None
        called = None if value is None else class_of(value)
        if called is None:
            continue
        targets = each.targets if isinstance(each, ast.Assign) else []
        words = [word_of(target) for target in targets]
        words += [each.arg] if isinstance(each, ast.keyword) and each.arg else []
        for name in [called] if called in classes else gives.get(called, ()):
            yield from (_Made(word, name, function) for word in words)


def _given_back(tree: ast.Module, classes: Collection[str]) -> dict[str, list[str]]:
    """Return the functions of a file that return what classes of the project make, with these."""
    found: dict[str, list[str]] = {}
    for each, function in _with_functions(tree):
        if isinstance(each, ast.Return) and function is not None:
            value = each.value
            parts = [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
            names = (class_of(part) for part in parts if part is not None)
            its = [name for name in names if name is not None and name in classes]
            found.setdefault(function.name, []).extend(its)
    return found


def word_of(node: ast.expr) -> str:
    """Return the last word of a name: ``model`` of ``self.model``.

    Example:
        >>> word_of(ast.parse("self.model", mode="eval").body)
        'model'
    """
    return ast.unparse(node).split(".")[-1]


def class_of(value: ast.expr) -> str | None:
    """Return the last word of the class that is called: ``Critic`` of ``Critic(8).to(device)``.

    Example:
        >>> class_of(ast.parse("Critic(8).to(device)", mode="eval").body)
        'Critic'
    """
    while isinstance(value, ast.Call):
        inner = value.func.value if isinstance(value.func, ast.Attribute) else None
        if not isinstance(inner, ast.Call):
            return last_word(value.func)
        value = inner
    return None
