"""Hooks of a project that may put keys into the states of models."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

from fsdp_migrate.newer_syntax import parse_newer


if TYPE_CHECKING:
    from collections.abc import Iterator


_HOOKS: Final = re.compile(r"\.(_register_state_dict_hook|register_state_dict_post_hook)\(")
_NAMES: Final = frozenset({"_register_state_dict_hook", "register_state_dict_post_hook"})
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
# What is asked of a state that leaves its keys, or only takes some away.
_LEAVES: Final = frozenset({"get", "items", "keys", "pop", "popitem", "values"})
_ASKS: Final = frozenset({"isinstance", "len", "list", "print", "sorted", "tuple"})
_PLACE: Final = 1


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
    tree = _tree(text)
    if tree is None:
        return True
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    hooks = [c for c in calls if isinstance(c.func, ast.Attribute) and c.func.attr in _NAMES]
    return any(not call.args or _adds(tree, call.args[0]) for call in hooks)


def _tree(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        try:
            return parse_newer(text)
        except (SyntaxError, ValueError):
            return None


def _adds(tree: ast.Module, hook: ast.expr) -> bool:
    """Tell whether a hook may put a key into its state, or is not seen: one function has its name."""
    name = hook.id if isinstance(hook, ast.Name) else hook.attr if isinstance(hook, ast.Attribute) else ""
    made = [node for node in ast.walk(tree) if isinstance(node, _FUNCTIONS) and node.name == name]
    stores = (node for node in ast.walk(tree) if isinstance(node, (ast.Name, ast.Attribute)))
    is_set = any(_named(node) == name and isinstance(node.ctx, ast.Store) for node in stores)
    if len(made) != 1 or is_set:
        return True
    function = made[0]
    names = [arg.arg for arg in (*function.args.posonlyargs, *function.args.args)]
    is_static = any(_named(each) == "staticmethod" for each in function.decorator_list)
    if isinstance(hook, ast.Attribute) and not is_static:
        if _named(hook.value) != "self":
            return True
        names = names[1:]  # a method's own `self` is not the module that the hook is given
    state = names[_PLACE] if len(names) > _PLACE else ""
    if not state or any(map(_is_more_than_asked, _mentions(function, state))):
        return True
    given = (each.value for each in ast.walk(function) if isinstance(each, ast.Return))
    return any(each is not None and ast.unparse(each) not in {state, "None"} for each in given)


def _named(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _mentions(function: ast.AST, state: str) -> Iterator[tuple[ast.AST, ast.AST, ast.AST | None]]:
    """Yield where a state is spoken of, with what that stands in, and what this stands in."""
    above = {id(child): node for node in ast.walk(function) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and node.id == state:
            around = above[id(node)]
            yield node, around, above.get(id(around))


def _is_more_than_asked(mention: tuple[ast.AST, ast.AST, ast.AST | None]) -> bool:
    """Tell whether a mention of a state may put a key into it, or leads out of sight."""
    node, around, beyond = mention
    if isinstance(around, ast.Attribute):
        is_called = isinstance(beyond, ast.Call) and beyond.func is around
        return not (is_called and around.attr in _LEAVES)
    if isinstance(around, ast.Subscript):
        return around.value is not node or isinstance(around.ctx, ast.Store)
    if isinstance(around, ast.Call):
        return _named(around.func) not in _ASKS or around.func is node
    return not isinstance(around, (ast.Compare, ast.For, ast.Return, ast.comprehension, ast.FormattedValue))
