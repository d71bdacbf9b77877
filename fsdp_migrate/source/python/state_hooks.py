"""Hooks of a project that may put keys into the states of models."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

from fsdp_migrate.newer_syntax import parse_any
from fsdp_migrate.source.python.argument_places import placed_names
from fsdp_migrate.source.python.bound_names import STAR, names_bound
from fsdp_migrate.source.python.walked import walked


if TYPE_CHECKING:
    from collections.abc import Iterator


_NAMES: Final = ("_register_state_dict_hook", "register_state_dict_post_hook")
_HOOKS: Final = re.compile(rf"\.({'|'.join(_NAMES)})\(")
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
# What is asked of a state that leaves its keys, or only takes some away.
_LEAVES: Final = frozenset({"get", "items", "keys", "pop", "popitem", "values"})
_ASKS: Final = frozenset({"isinstance", "len", "list", "print", "sorted", "tuple"})
_PLACE: Final = 1
_COPIED: Final = "FullyShardedDataParallel"


def adds_keys(text: str) -> bool:
    r"""Tell whether hooks of a source may put keys into the states of models.

    Those whose function is seen, and does nothing with the state by which it gets a key, do not.

    Example:
        >>> adds_keys("layer.register_state_dict_post_hook(merge)")
        True
        >>> adds_keys("def log(m, state, *x): print(len(state))\nlayer.register_state_dict_post_hook(log)")
        False
    """
    if _HOOKS.search(text) is None:
        return False
    try:
        tree = parse_any(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return True
    return any(hooks_that_add(tree))


def hooks_that_add(tree: ast.Module) -> Iterator[ast.Call]:
    """Yield the calls by which a source registers such hooks."""
    nodes = list(walked(tree))
    # A copy of torch's own file registers them of what is FSDP1's model alone.
    copies = [each for each in nodes if isinstance(each, ast.ClassDef) and each.name == _COPIED]
    theirs = {id(part) for each in copies for part in ast.walk(each)}
    calls = (node for node in nodes if isinstance(node, ast.Call) and id(node) not in theirs)
    hooks = [c for c in calls if isinstance(c.func, ast.Attribute) and c.func.attr in _NAMES]
    yield from (call for call in hooks if not call.args or _adds(tree, call))


def _adds(tree: ast.Module, call: ast.Call) -> bool:
    """Tell whether a hook may put a key into its state, or is not seen."""
    function = _function_of(tree, call)
    if function is None:
        return True
    names = placed_names(function)
    if isinstance(call.args[0], ast.Attribute) and not function.decorator_list:
        names = names[1:]  # a method's own `self` is not the module that the hook is given
    state = names[_PLACE] if len(names) > _PLACE else ""
    asks = _ASKS.difference(each.name for each in names_bound(tree))
    if not state or any(_is_more_than_asked(*each, asks) for each in _mentions(function, state)):
        return True
    given = (each.value for each in ast.walk(function) if isinstance(each, ast.Return))
    return any(each is not None and ast.unparse(each) not in {state, "None"} for each in given)


def _function_of(tree: ast.Module, call: ast.Call) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """Return the function that is a hook for sure: nothing else has its name, whatever binds it."""
    hook = call.args[0]
    name = hook.id if isinstance(hook, ast.Name) else hook.attr if isinstance(hook, ast.Attribute) else ""
    made = [node for node in walked(tree) if isinstance(node, _FUNCTIONS) and node.name == name]
    if len(made) != 1 or not {ast.unparse(each) for each in made[0].decorator_list} <= {"staticmethod"}:
        return None
    function = made[0]
    others = (each for each in names_bound(tree) if each.node is not function)
    if any(each.name == name or (each.name == STAR and each.line > function.lineno) for each in others):
        return None
    attributes = (node for node in walked(tree) if isinstance(node, ast.Attribute) and node.attr == name)
    if any(not isinstance(node.ctx, ast.Load) for node in attributes):
        return None
    owner = _owner(tree, function)
    if not isinstance(hook, ast.Attribute):
        return function if owner is None else None
    root = hook.value.id if isinstance(hook.value, ast.Name) else ""
    is_own = owner is not None and root == "self" and call in ast.walk(owner)
    is_named = owner is not None and root == owner.name and bool(function.decorator_list)
    return function if is_own or is_named else None


def _owner(tree: ast.Module, function: ast.AST) -> ast.ClassDef | None:
    """Return the class whose method a function is."""
    above = {child: node for node in walked(tree) for child in ast.iter_child_nodes(node)}
    node = above[function]
    while not isinstance(node, (ast.ClassDef, ast.Module, *_FUNCTIONS)):
        node = above[node]
    return node if isinstance(node, ast.ClassDef) else None


def _mentions(function: ast.AST, state: str) -> Iterator[tuple[ast.Name, ast.AST, ast.AST | None]]:
    """Yield where a state is spoken of, with what that stands in, and what this stands in."""
    above = {id(child): node for node in ast.walk(function) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and node.id == state:
            around = above[id(node)]
            yield node, around, above.get(id(around))


def _is_more_than_asked(
    node: ast.Name, around: ast.AST, beyond: ast.AST | None, asks: frozenset[str]
) -> bool:
    """Tell whether a mention of a state may put a key into it, or leads out of sight."""
    if not isinstance(node.ctx, ast.Load):
        return True
    if isinstance(around, ast.Attribute):
        is_called = isinstance(beyond, ast.Call) and beyond.func is around
        return not (is_called and around.attr in _LEAVES)
    if isinstance(around, ast.Subscript):
        return around.value is not node or isinstance(around.ctx, ast.Store)
    if isinstance(around, ast.Call):
        return not isinstance(around.func, ast.Name) or around.func.id not in asks
    return not isinstance(around, (ast.Compare, ast.For, ast.Return, ast.comprehension, ast.FormattedValue))
