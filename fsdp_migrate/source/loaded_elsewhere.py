"""What ``torch.load`` gives, followed to the functions of a project that return it or are given it."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from fsdp_migrate.source.python.unknown_models import is_model
from fsdp_migrate.source.python.walked import last_word, walked, walked_alone
from fsdp_migrate.source.python.wrappers import WRAPPERS


if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator


LOADS: Final = "torch.load"
PICKS: Final = frozenset({"get", "pop"})
"""What takes an item of a dict by a method."""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SCOPES = (*_FUNCTIONS, ast.Lambda)
_ROUNDS: Final = 3
_OF_MODELS: Final = "load_state_dict"
"""What every model has: a project's class with such a method of its own is given what its own objects are."""
_AVERAGE: Final = re.compile(r"(?i)ema|average|shadow")


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
    trees = list(trees)
    scopes = [
        scope for tree in trees for scope in walked(tree) if isinstance(scope, (ast.Module, *_FUNCTIONS))
    ]
    gives: set[str] = set()
    for _ in range(_ROUNDS):
        found = {each.name for each in scopes if isinstance(each, _FUNCTIONS) and _returns_one(each, gives)}
        if found <= gives:
            break
        gives |= found
    given = (each for tree in trees for each in _given_in(tree, gives))
    return Loads(frozenset(gives), frozenset(given))


def _given_in(tree: ast.Module, gives: Collection[str]) -> Iterator[Given]:
    scopes = [each for each in walked(tree) if isinstance(each, (ast.Module, *_FUNCTIONS))]
    models, kept = _models_in(tree), _kept(scopes, gives)
    for scope in scopes:
        yield from _given(scope, gives, models, kept)


def _kept(scopes: Iterable[ast.AST], gives: Collection[str]) -> set[str]:
    """Return the attributes that a file sets to what is loaded, and to nothing else: ``self.state``."""
    found: set[str] = set()
    others: set[str] = set()
    for scope in scopes:
        names = _names(scope, gives)
        assigns = (node for node in walked_alone(scope, _SCOPES) if isinstance(node, ast.Assign))
        for node in assigns:
            targets = {ast.unparse(each) for each in node.targets if isinstance(each, ast.Attribute)}
            is_none = isinstance(node.value, ast.Constant) and node.value.value is None
            if targets and not is_none:
                (found if _is_one(node.value, gives, names) else others).update(targets)
    return found - others


def _models_in(tree: ast.Module) -> set[str]:
    """Return what a file calls objects that it wraps, by last words."""
    made: dict[str, set[bool]] = {}
    for node in walked(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            name = last_word(node.value.func)
            given = {ast.unparse(each) for each in node.value.args}
            for target in node.targets:
                # `one = FSDP(net)`, and `self.one = wrap(self.one)`: what others make may have the method.
                is_one = WRAPPERS.search(name) is not None or ast.unparse(target) in given
                made.setdefault(last_word(target), set()).add(is_one and not _AVERAGE.search(name))
    return {name for name, known in made.items() if all(known)}


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
        elif isinstance(node, ast.DictComp) and (over := _copied(node)) is not None:
            node = over
        else:
            break
    if isinstance(node, (ast.Attribute, ast.Name)):
        return ast.unparse(node) in names
    if not isinstance(node, ast.Call):
        return False
    return ast.unparse(node.func) == LOADS or last_word(node.func) in gives


def _copied(node: ast.DictComp) -> ast.expr | None:
    """Return the dict whose values a new one has: ``{n: p.clone() for n, p in state.items()}``."""
    over, value = node.generators[0].iter, node.value
    while isinstance(value, (ast.Attribute, ast.Call)):
        value = value.func if isinstance(value, ast.Call) else value.value
    target = node.generators[0].target
    last = target.elts[-1] if isinstance(target, ast.Tuple) else target
    is_its = isinstance(over, ast.Call) and last_word(over.func) == "items" and len(node.generators) == 1
    if not is_its or ast.unparse(value) != ast.unparse(last):
        return None
    func = cast("ast.Call", over).func
    return func.value if isinstance(func, ast.Attribute) else None


def _returns_one(function: ast.AST, gives: Collection[str]) -> bool:
    own = walked_alone(function, _SCOPES)
    given = [each.value for each in own if isinstance(each, ast.Return) and each.value is not None]
    names = _names(function, gives) if given else set()
    return any(_is_one(each, gives, names) for each in given)


def _given(
    scope: ast.AST, gives: Collection[str], models: Collection[str], kept: Collection[str]
) -> Iterator[Given]:
    names = {*_names(scope, gives), *kept}
    for call in (node for node in walked_alone(scope, _SCOPES) if isinstance(node, ast.Call)):
        function = last_word(call.func)
        if function and not _is_of_a_model(call.func, models):
            for place, arg in enumerate(call.args):
                if _is_one(arg, gives, names):
                    yield Given(function, place, "")
            for each in call.keywords:
                if each.arg is not None and _is_one(each.value, gives, names):
                    yield Given(function, -1, each.arg)


def _is_of_a_model(func: ast.expr, models: Collection[str]) -> bool:
    """Tell whether it is the method of a model, by what its file or its name says, and no average's."""
    if not isinstance(func, ast.Attribute) or func.attr != _OF_MODELS:
        return False
    asked = last_word(func.value)
    if _AVERAGE.search(asked) or asked in {"cls", "self"}:
        return False
    return asked in models or is_model(asked)
