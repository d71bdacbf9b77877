"""Lists of parameters that a wrapping leaves alone: they stay the objects that they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.nodes import dotted, text_of, walk_for


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


_NAMES: Final = frozenset({"ignored_parameters", "ignored_states"})
_PUTS: Final = frozenset({"setdefault", "update"})


def ignored_names(source: Source, wrapping: cst.Call) -> Iterator[str]:
    """Yield the names in what a wrapping is given to leave alone, also by a dict: ``FSDP(net, **kwargs)``."""
    for value in _given(source, wrapping):
        yield from (name.value for name in walk_for(value, cst.Name))


def _given(source: Source, wrapping: cst.Call) -> Iterator[cst.BaseExpression]:
    for arg in wrapping.args:
        if arg.star == "**":
            yield from _of_dict(source, wrapping, arg.value)
        elif arg.keyword is not None and arg.keyword.value in _NAMES:
            yield arg.value


def _of_dict(source: Source, wrapping: cst.Call, given: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """Yield what a dict has for it that a wrapping is given, and what the same function puts in before."""
    is_name = isinstance(given, cst.Name) and given in source.index.scopes
    yield from _items(last_value(source.index, given) if isinstance(given, cst.Name) and is_name else given)
    if dotted(given) is None:
        return
    index, order = source.index, source.index.order
    for assign in source.assignments:
        targets = (each.target for each in assign.targets if isinstance(each.target, cst.Subscript))
        is_its = any(text_of(each.value) == text_of(given) and _key(each) in _NAMES for each in targets)
        if is_its and index.function(assign) is index.function(wrapping) and order[assign] < order[wrapping]:
            yield assign.value
    for call in source.calls:
        func = call.func
        is_put = isinstance(func, cst.Attribute) and func.attr.value in _PUTS
        if not is_put or not isinstance(func, cst.Attribute) or text_of(func.value) != text_of(given):
            continue
        if index.function(call) is index.function(wrapping) and order[call] < order[wrapping]:
            yield from _items(call)


def _items(held: cst.BaseExpression | None) -> Iterator[cst.BaseExpression]:
    """Yield it of ``{"ignored_states": x}``, ``dict(ignored_states=x)`` and ``d.update({...})``."""
    if isinstance(held, cst.Dict):
        for each in held.elements:
            if isinstance(each, cst.DictElement) and _text(each.key) in _NAMES:
                yield each.value
    elif isinstance(held, cst.Call):
        first = _text(held.args[0].value) if len(held.args) > 1 else None
        for arg in held.args:
            if arg.keyword is None:
                yield from _items(arg.value) if isinstance(arg.value, cst.Dict) else ()
            if (arg.keyword.value if arg.keyword is not None else first) in _NAMES:
                yield arg.value


def _key(target: cst.Subscript) -> str | None:
    index = target.slice[0].slice if len(target.slice) == 1 else None
    return _text(index.value) if isinstance(index, cst.Index) else None


def _text(node: cst.BaseExpression) -> str | None:
    return str(node.evaluated_value) if isinstance(node, cst.SimpleString) else None
