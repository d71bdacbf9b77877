"""What ``torch.load`` gives, followed to the functions of a project that return it or are given it."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final, NamedTuple

from fsdp_migrate.source.python.walked import last_word, walked, walked_alone


if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator


LOADS: Final = "torch.load"
PICKS: Final = frozenset({"get", "pop"})
"""What takes an item of a dict by a method."""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SCOPES = (*_FUNCTIONS, ast.Lambda)
_ROUNDS: Final = 3


class Given(NamedTuple):
    """An argument that a function is given such a value for: by its place, or its name if it has one."""

    function: str
    place: int
    name: str


class Loads(NamedTuple):
    """The functions of a project by their last names."""

    gives: frozenset[str] = frozenset()
    """Those that return what ``torch.load`` gives, or an item of it."""
    given: frozenset[Given] = frozenset()
    """Those that are given it."""


def loads_of(trees: Iterable[ast.Module]) -> Loads:
    r"""Return which functions give what ``torch.load`` gives, and which are given it.

    Example:
        >>> text = "def read(p):\n    return torch.load(p)\nrestore(m, read('a')['w'])"
        >>> found = loads_of([ast.parse(text)])
        >>> sorted(found.gives), sorted(found.given)
        (['read'], [Given(function='restore', place=1, name='')])
    """
    scopes = [
        scope for tree in trees for scope in walked(tree) if isinstance(scope, (ast.Module, *_FUNCTIONS))
    ]
    gives: set[str] = set()
    for _ in range(_ROUNDS):
        found = {each.name for each in scopes if isinstance(each, _FUNCTIONS) and _returns_one(each, gives)}
        if found <= gives:
            break
        gives |= found
    return Loads(frozenset(gives), frozenset(each for scope in scopes for each in _given(scope, gives)))


def _names(scope: ast.AST, gives: Collection[str]) -> set[str]:
    """Return the names that a function binds to what is loaded, and to nothing else."""
    found: set[str] = set()
    others: set[str] = set()
    for node in walked_alone(scope, _SCOPES):
        if isinstance(node, ast.Assign):
            names = {each.id for each in node.targets if isinstance(each, ast.Name)}
            (found if _is_one(node.value, gives, found) else others).update(names)
    return found - others


def _is_one(node: ast.expr, gives: Collection[str], names: Collection[str]) -> bool:
    """Tell whether it is what ``torch.load`` gives, or an item of it."""
    while True:
        if isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in PICKS:
            node = node.func.value
        else:
            break
    if isinstance(node, ast.Name):
        return node.id in names
    if not isinstance(node, ast.Call):
        return False
    return ast.unparse(node.func) == LOADS or last_word(node.func) in gives


def _returns_one(function: ast.AST, gives: Collection[str]) -> bool:
    own = walked_alone(function, _SCOPES)
    given = [each.value for each in own if isinstance(each, ast.Return) and each.value is not None]
    names = _names(function, gives) if given else set()
    return any(_is_one(each, gives, names) for each in given)


def _given(scope: ast.AST, gives: Collection[str]) -> Iterator[Given]:
    names = _names(scope, gives)
    for call in (node for node in walked_alone(scope, _SCOPES) if isinstance(node, ast.Call)):
        function = last_word(call.func)
        if function:
            for place, arg in enumerate(call.args):
                if _is_one(arg, gives, names):
                    yield Given(function, place, "")
            for each in call.keywords:
                if each.arg is not None and _is_one(each.value, gives, names):
                    yield Given(function, -1, each.arg)
