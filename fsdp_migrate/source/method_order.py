"""Methods that a constructor calls one after another: what the later ones set is not there in the earlier."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from fsdp_migrate.source.project import dotted


if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

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


def run_above(
    owner: Definition, base: Definition, later: Mapping[str, Collection[int]], texts: Collection[str]
) -> set[str]:
    """Return the methods of a class that one below it runs by ``super()`` alone, before it runs some others.

    As in ``def start(self): super().start(); self._shard()``, where nothing else leads to these.

    Args:
        owner: The class below.
        base: The class above.
        later: The methods of the class below that are to run after it, and the lines in which they shard.
        texts: All sources of the project.
    """
    calls = {name: _own_calls(owner, name) for name in _methods(owner)}
    leading = {name for name in calls if _reaches(calls, name, later, 0)}
    found = set()
    for method in _methods(base):
        others = leading - {method}
        is_one = method in leading and not method.startswith("__")
        if is_one and all(_is_called_by(calls, each, leading, texts) for each in others):
            starts = [line for name, line in calls[method] if name in others]
            starts += later.get(method, ())
            found |= {f"{base.name}.{method}"} if _asks_first(owner, base, method, starts, texts) else set()
    return found


def _is_called_by(
    calls: dict[str, list[tuple[str, int]]], method: str, callers: Collection[str], texts: Collection[str]
) -> bool:
    """Tell whether each place that names a method is a call in one of some methods, or its definition."""
    count = sum(name == method for each in callers for name, _ in calls[each])
    named = re.compile(rf"(?<!\w){re.escape(method)}\b")
    return 0 < count == sum(len(named.findall(text)) for text in texts if method in text) - 1


def _asks_first(
    owner: Definition, base: Definition, method: str, starts: list[int], texts: Collection[str]
) -> bool:
    made = owner.module.definitions[f"{owner.name}.{method}"]
    asked = [name for name in _methods(owner) for _ in _asked_above(owner, name, method)]
    lines = list(_asked_above(owner, method, method))
    if len(lines) != 1 or asked != [method] or _is_in_a_loop(made, lines[0]) or not starts:
        return False
    by_class = re.compile(rf"\b{re.escape(base.name)}\.{re.escape(method)}\b")
    return lines[0] < min(starts) and not any(map(by_class.search, texts))


def _asked_above(owner: Definition, within: str, method: str) -> Iterator[int]:
    """Yield the lines in a method at which one is called that ``super()`` has."""
    for each in ast.walk(owner.module.definitions[f"{owner.name}.{within}"].node):
        func = each.func if isinstance(each, ast.Call) else None
        if (
            isinstance(func, ast.Attribute)
            and func.attr == method
            and ast.unparse(func.value).startswith("super(")
        ):
            yield func.lineno


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
