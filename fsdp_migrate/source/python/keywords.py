"""What a call is given by name, also in a dict of keywords that is filled above: ``f(**kwargs)``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.nodes import dotted, given_by_name, text_of, walk_for


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.scopes import Index
    from fsdp_migrate.source.python.text import Source


def is_given_by_name(source: Source, call: cst.Call, name: str) -> bool:
    """Tell whether a call is given an argument by its name, itself or in a dict with ``**``."""
    for arg in call.args:
        if arg.keyword is not None and arg.keyword.value == name:
            return True
        if arg.star == "**" and any(_is_set(value) for value in _put_in(source.index, call, arg.value, name)):
            return True
    return False


def values_by_stars(source: Source, call: cst.Call, name: str) -> Iterator[cst.BaseExpression]:
    """Yield what a call may be given by a name in dicts with ``**``, also in those that a function makes."""
    for arg in call.args:
        if arg.star == "**":
            yield from _put_in(source.index, call, arg.value, name)
            for made in _returned(source, arg.value):
                yield from _put_in(source.index, made, made.value, name) if made.value is not None else ()


def _returned(source: Source, kept: cst.BaseExpression) -> Iterator[cst.Return]:
    """Yield the ``return`` of the functions of this source that make a dict: ``**options(cfg)``."""
    calls = [kept] if isinstance(kept, cst.Call) else []
    if isinstance(kept, cst.Name) and kept in source.index.scopes:
        values = (each.value for each in source.index.bindings_of(kept))
        calls = [value for value in values if isinstance(value, cst.Call)]
    for call in calls:
        for function in source.models.guards.functions(call.func):
            yield from (each for each in walk_for(function.body, cst.Return))


def _is_set(value: cst.BaseExpression) -> bool:
    return text_of(value) != "None"


def _put_in(
    index: Index, call: cst.Call | cst.Return, kept: cst.BaseExpression, name: str
) -> Iterator[cst.BaseExpression]:
    """Yield what a dict of keywords has by a name where a call is given it."""
    yield from _of_dict(kept, name)
    if not isinstance(kept, cst.Name) or kept not in index.scopes:
        return
    function, place = index.function(call), index.order[call]
    for binding in index.scopes[kept].lookup(kept.value):
        if binding.value is not None and index.function(binding.node) is function:
            yield from _of_dict(binding.value, name)
    above = function if function is not None else index.module
    for assign in walk_for(above, cst.Assign):
        for target in assign.targets:
            if index.order[assign] < place and _is_item(target.target, kept.value, name):
                yield assign.value
    for other in walk_for(above, cst.Call):
        if index.order[other] < place and not index.excludes(other, call):
            yield from _of_method(other, kept.value, name)


def _of_method(call: cst.Call, kept: str, name: str) -> Iterator[cst.BaseExpression]:
    """Yield what ``kwargs.update(name=value)`` and ``kwargs.setdefault("name", value)`` put in by a name."""
    if dotted(call.func) == f"{kept}.update":
        yield from given_by_name(call, name)
        yield from (value for arg in call.args for value in _of_dict(arg.value, name))
    elif dotted(call.func) == f"{kept}.setdefault" and len(call.args) == 2:
        key, value = (arg.value for arg in call.args)
        yield from [value] if _is_text(key, name) else ()


def _of_dict(node: cst.BaseExpression, name: str) -> Iterator[cst.BaseExpression]:
    """Yield the value of a key in ``{"name": value}`` and ``dict(name=value)``."""
    if isinstance(node, cst.Call) and dotted(node.func) == "dict":
        yield from given_by_name(node, name)
    for element in node.elements if isinstance(node, cst.Dict) else ():
        if isinstance(element, cst.DictElement) and _is_text(element.key, name):
            yield element.value


def _is_item(target: cst.BaseExpression, kept: str, name: str) -> bool:
    if not isinstance(target, cst.Subscript) or text_of(target.value) != kept or len(target.slice) != 1:
        return False
    part = target.slice[0].slice
    return isinstance(part, cst.Index) and _is_text(part.value, name)


def _is_text(node: cst.BaseExpression, text: str) -> bool:
    return isinstance(node, cst.SimpleString) and node.evaluated_value == text
