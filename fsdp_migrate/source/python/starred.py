"""What a call of Accelerate's ``prepare`` is given by a star: ``prepare(*things)``.

It is read where a list shows it, also by names: ``*map(lambda name: getattr(self, name), names)``.
"""

from __future__ import annotations

import ast
import functools
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.last_values import last_value


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fsdp_migrate.source.python.scopes import Index

    ValueOf = Callable[[ast.Name], ast.expr | None]


def given_to(index: Index, call: cst.Call, *, or_taken: bool = False) -> list[str]:
    """Return the names of what a call is given, place by place; none where a list is not seen.

    ``or_taken``: then those that its results are given to, ``model, opt = prepare(*things)``.
    """
    names = {
        node.value: value
        for arg in call.args
        for node in _names(arg.value)
        if node in index.scopes and (value := last_value(index, node)) is not None
    }
    parsed = _parsed(index.module, call)
    if not isinstance(parsed, ast.Call):
        return []
    found = _given(parsed, lambda name: _parsed(index.module, names[name.id]) if name.id in names else None)
    above = index.parents.get(call)
    if found or not or_taken or not isinstance(above, cst.Assign):
        return found
    return _taken(_parsed(index.module, above.targets[0].target))


def given_in(tree: ast.Module, call: ast.Call) -> list[str]:
    """Return what :func:`given_to` does with ``or_taken``, of what the standard library has parsed."""
    values, taken = _assigned(tree)
    return _given(call, lambda name: values.get(name.id)) or _taken(taken.get(call))


def _names(node: cst.CSTNode) -> Iterator[cst.Name]:
    if isinstance(node, cst.Name):
        yield node
    elif isinstance(node, (cst.ListComp, cst.GeneratorExp)):
        yield from _names(node.for_in.iter)
    elif isinstance(node, cst.Call):
        for arg in node.args:
            yield from _names(arg.value)


def _parsed(module: cst.Module, node: cst.CSTNode) -> ast.expr | None:
    try:
        return ast.parse(f"({module.code_for_node(node)})", mode="eval").body
    except SyntaxError:  # written for a newer Python
        return None


@functools.lru_cache(maxsize=64)
def _assigned(tree: ast.Module) -> tuple[dict[str, ast.expr | None], dict[ast.expr, ast.expr]]:
    """Return the names that are assigned once with their values, and values with what is given them."""
    values: dict[str, ast.expr | None] = {}
    taken: dict[ast.expr, ast.expr] = {}
    for node in ast.walk(tree):
        for target in node.targets if isinstance(node, ast.Assign) else ():
            if isinstance(node, ast.Assign):
                taken[node.value] = target
                if isinstance(target, ast.Name):
                    values[target.id] = None if target.id in values else node.value
    return values, taken


def _given(call: ast.Call, value_of: ValueOf) -> list[str]:
    found: list[str] = []
    for arg in call.args:
        if not isinstance(arg, ast.Starred):
            found.append(_text(arg))
            continue
        listed = _listed(arg.value, value_of)
        if not listed:
            return []
        found += listed
    return found


def _listed(node: ast.expr, value_of: ValueOf) -> list[str]:
    """Return the names of a list's items, or of the attributes that ``map`` and ``getattr`` take."""
    if isinstance(node, ast.Name):
        value = value_of(node)
        return [] if value is None or isinstance(value, ast.Name) else _listed(value, value_of)
    if isinstance(node, (ast.List, ast.Tuple)):
        is_plain = not any(isinstance(each, ast.Starred) for each in node.elts)
        return [_text(each) for each in node.elts] if is_plain else []
    if isinstance(node, ast.Call) and _text(node.func) == "map" and len(node.args) == 2:
        return _listed(node.args[1], value_of) if "getattr(" in ast.unparse(node.args[0]) else []
    if isinstance(node, (ast.ListComp, ast.GeneratorExp)) and "getattr(" in ast.unparse(node.elt):
        return _listed(node.generators[0].iter, value_of)
    return []


def _taken(target: ast.expr | None) -> list[str]:
    if not isinstance(target, (ast.Tuple, ast.List)):
        return []
    # Of what a star takes the places are not known.
    plain = [each for each in target.elts if not isinstance(each, ast.Starred)]
    if target.elts[: len(plain)] != plain:
        return []
    return [_text(each) for each in plain] + [""] * (len(target.elts) - len(plain))


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return ast.unparse(node) if isinstance(node, (ast.Name, ast.Attribute)) else ""
