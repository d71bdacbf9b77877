"""Methods that a constructor calls one after another: what the later ones set is not there in the earlier."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from fsdp_migrate.source.project import dotted


if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from fsdp_migrate.source.project import Definition


_DEEPEST = 4


def runs_before(owner: Definition, method: str, later: Collection[str], texts: Iterable[str]) -> bool:
    """Tell whether a constructor calls a method once, above all its calls that reach some others.

    Args:
        owner: The class.
        method: The method, which nothing else may call.
        later: The methods that are to run after it. ``__init__`` itself is none of them.
        texts: All sources of the project.
    """
    made = owner.module.definitions.get(f"{owner.name}.__init__")
    if made is None or not later or method in later or "__init__" in later:
        return False
    calls = {name: _own_calls(owner, name) for name in _methods(owner)}
    lines = [line for name, line in calls["__init__"] if name == method]
    named = re.compile(rf"\b{re.escape(method)}\b(?!\s*\()|\.{re.escape(method)}\s*\(")
    if (
        len(lines) != 1
        or sum(len(named.findall(text)) for text in texts) != 1
        or _is_in_a_loop(made, lines[0])
    ):
        return False
    reached = [line for name, line in calls["__init__"] if _reaches(calls, name, later, 0)]
    return bool(reached) and min(reached) > lines[0]


def _methods(owner: Definition) -> list[str]:
    assert isinstance(owner.node, ast.ClassDef)
    return [
        node.name for node in owner.node.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]


def _own_calls(owner: Definition, method: str) -> list[tuple[str, int]]:
    """Return the methods of its own object that a method calls, and where."""
    node = owner.module.definitions[f"{owner.name}.{method}"].node
    found = [(dotted(each.func) or "", each.lineno) for each in ast.walk(node) if isinstance(each, ast.Call)]
    return [(text.removeprefix("self."), line) for text, line in found if text.startswith("self.")]


def _is_in_a_loop(made: Definition, line: int) -> bool:
    loops = (node for node in ast.walk(made.node) if isinstance(node, (ast.For, ast.While)))
    return any(loop.lineno <= line <= (loop.end_lineno or line) for loop in loops)


def _reaches(calls: dict[str, list[tuple[str, int]]], name: str, later: Collection[str], depth: int) -> bool:
    if name in later:
        return True
    return depth < _DEEPEST and any(
        _reaches(calls, each, later, depth + 1) for each, _ in calls.get(name, ())
    )
