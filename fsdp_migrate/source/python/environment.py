"""Variables of the environment that a source sets: for Accelerate, or beside HF Trainer's arguments."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.nodes import dotted, text_of


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


_SETS = re.compile(r"environ|ACCELERATE_USE_FSDP")
# Of a process that is started: such names stand for nothing else, whatever dict they are in.
_OF_ACCELERATE = re.compile(r"ACCELERATE_USE_FSDP|FSDP_(?:[A-Z]+_)*[A-Z]+")


def variables_set(source: Source) -> Iterator[tuple[cst.CSTNode, str, cst.BaseExpression]]:
    """Yield where a source sets a variable of the environment, with its name and what it is set to."""
    for assign in source.assignments:
        for target in assign.targets:
            held = target.target
            name = _text(held.slice[0]) if isinstance(held, cst.Subscript) else ""
            is_own = isinstance(held, cst.Subscript) and (dotted(held.value) or "").endswith("environ")
            if is_own or _OF_ACCELERATE.fullmatch(name):
                yield assign, name, assign.value
    updated = set()
    for call in source.calls:
        func, placed = dotted(call.func) or "", [arg.value for arg in call.args if arg.keyword is None]
        if func.endswith("environ.setdefault") and len(placed) == 2:
            yield call, _text(placed[0]), placed[1]
        elif func.endswith("environ.update"):
            updated.update(placed[:1])
            named = ((arg.keyword.value, arg.value) for arg in call.args if arg.keyword is not None)
            yield from ((call, name, value) for name, value in named)
            yield from ((call, name, value) for _, name, value in _items(placed[0] if placed else None))
        else:
            yield from _given_to_another(call)
    for node in source.index.by_kind.get(cst.Dict, ()):
        of_accelerate = (each for each in _items(node) if _OF_ACCELERATE.fullmatch(each[1]))
        yield from of_accelerate if node not in updated else ()


def _items(node: cst.CSTNode | None) -> Iterator[tuple[cst.CSTNode, str, cst.BaseExpression]]:
    for each in node.elements if isinstance(node, cst.Dict) else ():
        if isinstance(each, cst.DictElement):
            yield each, _text(each.key), each.value


def _text(node: cst.CSTNode) -> str:
    return text_of(node).strip("'\"")


def _given_to_another(call: cst.Call) -> Iterator[tuple[cst.CSTNode, str, cst.BaseExpression]]:
    """Yield the variables that a call names: ``dict(os.environ, ACCELERATE_USE_FSDP="true")``."""
    for arg in call.args:
        name = arg.keyword.value if arg.keyword is not None else ""
        if _OF_ACCELERATE.fullmatch(name):
            yield call, name, arg.value


def fsdp_environment(source: Source) -> dict[str, str]:
    """Return what a source sets Accelerate's variables to; what is not one text as a variable, ``$NAME``."""
    found: dict[str, set[str]] = {}
    for _, name, value in variables_set(source) if _SETS.search(source.code) else ():
        if name.startswith(("FSDP_", "ACCELERATE_")):
            text = str(value.evaluated_value) if isinstance(value, cst.SimpleString) else f"${name}"
            found.setdefault(name, set()).add(text)
    return {name: values.pop() if len(values) == 1 else f"${name}" for name, values in found.items()}
