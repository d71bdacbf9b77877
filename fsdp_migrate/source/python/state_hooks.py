"""Hooks of a project that may put keys into the states of models."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

from fsdp_migrate.newer_syntax import parse_any
from fsdp_migrate.source.python.argument_places import placed_names
from fsdp_migrate.source.python.bound_names import STAR, names_bound
from fsdp_migrate.source.python.walked import last_word, walked


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Elsewhere = Callable[[str], "ast.Module | None"]


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


def hooks_that_add(tree: ast.Module, elsewhere: Elsewhere | None = None) -> Iterator[ast.Call]:
    """Yield the calls by which a source registers such hooks.

    ``elsewhere``: gives the file of the project that a name is imported from, as it is called there.
    """
    nodes = list(walked(tree))
    # A copy of torch's own file registers them of what is FSDP1's model alone.
    copies = [each for each in nodes if isinstance(each, ast.ClassDef) and each.name == _COPIED]
    theirs = {id(part) for each in copies for part in ast.walk(each)}
    calls = (node for node in nodes if isinstance(node, ast.Call) and id(node) not in theirs)
    hooks = [c for c in calls if isinstance(c.func, ast.Attribute) and c.func.attr in _NAMES]
    yield from (call for call in hooks if not call.args or _adds(tree, call, elsewhere))


def _adds(tree: ast.Module, call: ast.Call, elsewhere: Elsewhere | None) -> bool:
    """Tell whether a hook may put a key into its state, or is not seen."""
    hook = _without_partial(call.args[0])
    function = _function_of(tree, call, hook)
    if function is None and isinstance(hook, ast.Name) and elsewhere is not None:
        bound = [each for each in names_bound(tree) if each.name in {hook.id, STAR}]
        other = elsewhere(hook.id) if len(bound) == 1 else None
        tree, function = (other, _function_of(other, call, hook)) if other is not None else (tree, None)
    if function is None:
        return True
    names = placed_names(function)
    if isinstance(hook, ast.Attribute) and not function.decorator_list:
        names = names[1:]  # a method's own `self` is not the module that the hook is given
    state = names[_PLACE] if len(names) > _PLACE else ""
    asks = _ASKS.difference(each.name for each in names_bound(tree))
    kept = {id(each) for each in _set_in_place(function, state)}
    told = (each for each in _mentions(function, state) if id(each[1]) not in kept)
    if not state or any(_is_more_than_asked(*each, asks) for each in told):
        return True
    given = (each.value for each in ast.walk(function) if isinstance(each, ast.Return))
    return any(each is not None and ast.unparse(each) not in {state, "None"} for each in given)


def _without_partial(hook: ast.expr) -> ast.expr:
    """Return the function of ``partial(function, dtype=dtype)``, which is given what the hook is."""
    is_partial = isinstance(hook, ast.Call) and last_word(hook.func) == "partial"
    return hook.args[0] if is_partial and isinstance(hook, ast.Call) and len(hook.args) == 1 else hook


def _function_of(
    tree: ast.Module, call: ast.Call, hook: ast.expr
) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """Return the function that is a hook for sure: nothing else has its name, whatever binds it."""
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


def _set_in_place(function: ast.AST, state: str) -> Iterator[ast.Subscript]:
    """Yield where a loop over a state sets the value of the key that it is at: ``state[k] = v.cpu()``."""
    for loop in ast.walk(function):
        key = _key_of(loop, state) if isinstance(loop, ast.For) else ""
        below = [part for each in loop.body for part in ast.walk(each)] if isinstance(loop, ast.For) else []
        if not key or any(_binds(part, key) for part in below):
            continue
        for part in below:
            if isinstance(part, ast.Subscript) and ast.unparse(part.value) == state:
                yield from [part] if ast.unparse(part.slice) == key else []


def _key_of(loop: ast.For, state: str) -> str:
    """Return what a loop over a state calls its keys; nothing for any other loop."""
    over, target = ast.unparse(loop.iter), loop.target
    pairs, keys = (f"{state}.items()", f"list({state}.items())"), (state, f"{state}.keys()", f"list({state})")
    if isinstance(target, ast.Tuple) and target.elts and over in pairs:
        target = target.elts[0]
    elif over not in (*keys, f"list({state}.keys())"):
        return ""
    return target.id if isinstance(target, ast.Name) else ""


def _binds(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load)


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
