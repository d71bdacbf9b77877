"""What a call of Accelerate's ``prepare`` is given by a star: ``prepare(*things)``.

It is read where a list shows it, also by names: ``*map(lambda name: getattr(self, name), names)``, and where
that list grows below: ``things.extend([critic, critic_optimizer])``.
"""

from __future__ import annotations

import ast
import functools
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.last_values import last_value, was_run
from fsdp_migrate.source.python.nodes import dotted, last_name


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
        if node in index.scopes and (value := _grown(index, call, node)) is not None
    }
    parsed = parsed_again(index.module, call)
    if not isinstance(parsed, ast.Call):
        return []
    found = _given(parsed, lambda name: names.get(name.id))
    above = index.parents.get(call)
    if found or not or_taken or not isinstance(above, cst.Assign):
        return found
    return _taken(parsed_again(index.module, above.targets[0].target))


def added_to(index: Index, call: cst.Call) -> Iterator[tuple[cst.CSTNode, list[str]]]:
    """Yield where the lists grow that a call is given by a star, in a branch perhaps, and what is added."""
    for arg in call.args:
        if arg.star == "*" and isinstance(arg.value, cst.Name) and arg.value in index.scopes:
            for place, items in _added(index, call, arg.value, _list_of(index, arg.value)):
                yield place, [_text(each) for each in items or ()]


def _grown(index: Index, call: cst.Call, name: cst.Name) -> ast.expr | None:
    """Return what a name holds for a call: a list with what is always added to it."""
    value = _list_of(index, name)
    parsed = parsed_again(index.module, value) if value is not None else None
    if isinstance(parsed, (ast.List, ast.Tuple)):
        for place, items in _added(index, call, name, value):
            if items is None or not was_run(index, place, call):
                break  # from here on the places are not known
            parsed.elts += items
    return parsed


def _list_of(index: Index, name: cst.Name) -> cst.BaseExpression | None:
    """Return what a name is given, also where ``things += [x]`` adds to it."""
    value = last_value(index, name)
    if value is not None:
        return value
    bindings = index.scopes[name].lookup(name.value)
    made = [each for each in bindings if not isinstance(index.parents.get(each.node), cst.AugAssign)]
    return made[0].value if len(made) == 1 and made[0].index is None else None


def _added(
    index: Index, call: cst.Call, name: cst.Name, value: cst.BaseExpression | None
) -> Iterator[tuple[cst.CSTNode, list[ast.expr] | None]]:
    """Yield where a list grows between its making and a call, and what is added; None where not seen."""
    if not isinstance(value, (cst.List, cst.Tuple)):
        return
    order, function = index.order, index.function(call)
    for node in sorted(_additions(index, name.value), key=order.__getitem__):
        is_between = order[value] < order[node] < order[call] and not index.excludes(node, call)
        if is_between and index.function(node) is function:
            given = node.args[0].value if isinstance(node, cst.Call) else node.value
            parsed = parsed_again(index.module, given)
            if isinstance(node, cst.Call) and _method(node) == "append":
                yield node, [parsed] if parsed is not None else None
            else:
                yield node, parsed.elts if isinstance(parsed, (ast.List, ast.Tuple)) else None


def _additions(index: Index, name: str) -> Iterator[cst.Call | cst.AugAssign]:
    for node in index.by_kind.get(cst.Call, ()):
        call = cst.ensure_type(node, cst.Call)
        is_its = dotted(call.func) in {f"{name}.append", f"{name}.extend"}
        if is_its and len(call.args) == 1 and not call.args[0].star:
            yield call
    for node in index.by_kind.get(cst.AugAssign, ()):
        line = cst.ensure_type(node, cst.AugAssign)
        if dotted(line.target) == name and isinstance(line.operator, cst.AddAssign):
            yield line


def _method(call: cst.Call) -> str:
    return last_name(call.func)


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


def parsed_again(module: cst.Module, node: cst.CSTNode) -> ast.expr | None:
    """Return an expression as the standard library parses it; None if it is written for a newer Python."""
    try:
        return ast.parse(f"({module.code_for_node(node)})", mode="eval").body
    except SyntaxError:
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
