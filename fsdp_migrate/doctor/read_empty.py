"""Lines at which FSDP1 reads a folder into the state of an optimizer that has not stepped: into nothing."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

from fsdp_migrate.findings import listed
from fsdp_migrate.newer_syntax import parse_any
from fsdp_migrate.source.python.walked import last_word, walked


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.doctor.sight import Sight


_ASKS: Final = frozenset({"optim_state_dict", "sharded_optim_state_dict"})
_LOADS: Final = re.compile(
    r"(?:\w+\.)*(?:dcp|checkpoint|dist_cp|DCP|state_dict_loader)\.load(?:_state_dict)?"
)
_STEPS: Final = re.compile(r"\b\w*(?:optim|opt)\w*\.step\(")
_MOST: Final = 3


def read_empty(sight: Sight) -> str:
    r"""Return where ``dcp.load`` reads into what FSDP1 gave of an optimizer, in a function that steps none.

    Example:
        >>> from fsdp_migrate.doctor.sight import Sight
        >>> read_empty(Sight(sources={"t.py": "s = {'o': FSDP.optim_state_dict(m, o)}\ndcp.load(s)"}))
        't.py:2'
    """
    near = (each for each in sight.sources.items() if any(f".{word}(" in each[1] for word in _ASKS))
    return listed([f"{path}:{line}" for path, text in near for line in _lines(text)], _MOST)


def _lines(text: str) -> list[int]:
    try:
        tree = parse_any(text)
    except (SyntaxError, ValueError, RecursionError):
        return []
    functions = [n for n in walked(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    inner = {each for function in functions for each in ast.walk(function)}
    homes = [list(ast.walk(each)) for each in functions]
    found: set[int] = set()  # a function within another is in both
    for nodes in [*homes, [each for each in walked(tree) if each not in inner]]:
        assigns = [each for each in nodes if isinstance(each, ast.Assign)]
        held = [(name, each.lineno) for each in assigns for name in _held(each)]
        steps = [n.lineno for n in nodes if isinstance(n, ast.Call) and _STEPS.match(ast.unparse(n))]
        for call in (n for n in nodes if isinstance(n, ast.Call) and _LOADS.fullmatch(ast.unparse(n.func))):
            given = {ast.unparse(each) for each in (*call.args, *(k.value for k in call.keywords))}
            above = [line for name, line in held if name in given and line < call.lineno]
            if above and not any(line < max(above) for line in steps):
                found.add(call.lineno)
    return sorted(found)


def _held(node: ast.Assign) -> Iterator[str]:
    """Yield the name in which a line keeps what FSDP1 gives: ``state``, also of ``state["optimizer"]``."""
    calls = (each for each in ast.walk(node.value) if isinstance(each, ast.Call))
    if any(last_word(call.func) in _ASKS for call in calls):
        for target in node.targets:
            root = target.value if isinstance(target, ast.Subscript) else target
            yield ast.unparse(root)
