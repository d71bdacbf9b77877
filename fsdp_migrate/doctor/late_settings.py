"""Parameters that a training comes back to: made trainable, or written into, between two epochs.

A framework's own FSDP2 shows whole parameters after an evaluation, on which such a setting is lost.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

from fsdp_migrate.findings import listed
from fsdp_migrate.newer_syntax import parse_any


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fsdp_migrate.doctor.sight import Sight


_FRAMEWORKS: Final = re.compile(r"\b[Aa]ccelerat|\b\w*Trainer(?:Callback)?\b")
_EVALUATES: Final = re.compile(r"\b(?:inference_mode|no_grad)\b|\.eval\(\)|(?:\b|_)(?:eval_|evaluat|validat)")
_TRAINS: Final = re.compile(r"backward|evaluat|\bfit|\bstep$|train|valid")
_PARAMETERS: Final = frozenset({"named_parameters", "parameters"})
# Hooks that are called once, before any forward.
_ONCE: Final = frozenset({"on_fit_start", "on_init_end", "on_train_begin", "on_train_start"})
_MOST: Final = 3
_DEEPEST: Final = 3
_Loop = ast.For | ast.While | ast.AsyncFor
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def late_settings(sight: Sight, *, is_written: bool) -> str:
    """Return where parameters are made trainable, or not, again and again; or, if asked, written into too."""
    found = (
        f"{path}:{line}"
        for path, text in sight.sources.items()
        if "requires_grad" in text or (is_written and "copy_" in text)
        if _FRAMEWORKS.search(text) and _EVALUATES.search(text)
        for line in _lines(text, is_written=is_written)
    )
    return listed(dict.fromkeys(found), _MOST)


def _lines(text: str, *, is_written: bool) -> Iterator[int]:
    try:
        tree = parse_any(text)
    except SyntaxError:
        return
    above = {id(child): node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Assign, ast.Call)):
            continue
        is_one = _sets(node) or (is_written and _writes(node, above))
        if is_one and _comes_again(node, tree, above, 0):
            yield node.lineno


def _sets(node: ast.AST) -> bool:
    """Tell whether a statement says whether something is trained."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr == "requires_grad_"
    targets = node.targets if isinstance(node, ast.Assign) else []
    return any(isinstance(each, ast.Attribute) and each.attr == "requires_grad" for each in targets)


def _writes(node: ast.AST, above: dict[int, ast.AST]) -> bool:
    """Tell whether a call copies into one of a loop's parameters: ``p.data.copy_(old[name])``."""
    func = node.func if isinstance(node, ast.Call) else None
    if not isinstance(func, ast.Attribute) or func.attr != "copy_":
        return False
    held = func.value.value if isinstance(func.value, ast.Attribute) else func.value
    loops = (each for each in _around(node, above) if isinstance(each, ast.For))
    return isinstance(held, ast.Name) and any(
        held.id in _names(loop.target) and _asked(loop.iter) & _PARAMETERS for loop in loops
    )


def _comes_again(node: ast.AST, tree: ast.AST, above: dict[int, ast.AST], depth: int) -> bool:
    """Tell whether a place is come to between forwards: in a loop that trains, or in a hook of one."""
    for each in _around(node, above):
        if isinstance(each, _Loop) and any(map(_TRAINS.search, _asked(each))):
            return True
        if isinstance(each, _Function):
            name = each.name
            if name.startswith("on_") and name not in _ONCE:
                return True
            calls = (call for call in ast.walk(tree) if isinstance(call, ast.Call) and _last(call) == name)
            return depth < _DEEPEST and any(_comes_again(call, tree, above, depth + 1) for call in calls)
    return False


def _around(node: ast.AST, above: dict[int, ast.AST]) -> Iterator[ast.AST]:
    while (outer := above.get(id(node))) is not None:
        yield outer
        node = outer


def _asked(node: ast.AST) -> set[str]:
    return {_last(each) for each in ast.walk(node) if isinstance(each, ast.Call)}


def _last(call: ast.Call) -> str:
    func = call.func
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""


def _names(target: ast.AST) -> Iterable[str]:
    return {each.id for each in ast.walk(target) if isinstance(each, ast.Name)}
