"""What a call is given by name, also in a dict of keywords that is filled above: ``f(**kwargs)``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.python.nodes import dotted, given_by_name, last_name, text_of, walk_for
from fsdp_migrate.source.python.values import definition, is_dict_call


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fsdp_migrate.source.python.scopes import Index
    from fsdp_migrate.source.python.text import Source


_READS: Final = frozenset({"copy", "get", "items", "keys", "values"})
_LOOKS: Final = frozenset({"deepcopy", "dict", "len", "pprint", "print"})
_DEEPEST: Final = 4


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


def written_out(source: Source, call: cst.Call) -> dict[str, cst.BaseExpression]:
    """Return what a call is given by ``**`` in dicts that are written out here, and stay as they are."""
    found: dict[str, cst.BaseExpression] = {}
    for arg in call.args:
        if arg.star == "**":
            found |= _written(source, arg.value) or {}
    return found


def hides_arguments(source: Source, call: cst.Call) -> bool:
    """Tell whether a call may be given more than is seen, by ``*`` or a dict that is not written out."""
    return any(
        arg.star == "*" or (arg.star == "**" and _written(source, arg.value) is None) for arg in call.args
    )


def may_be_given(source: Source, call: cst.Call, names: Iterable[str]) -> dict[str, cst.BaseExpression]:
    """Return what dicts give a call by ``**`` where it is one thing that they give, in a branch perhaps."""
    given = {name: list(values_by_stars(source, call, name)) for name in names}
    return {name: values[0] for name, values in given.items() if len(values) == 1}


def _written(
    source: Source, node: cst.BaseExpression, depth: int = _DEEPEST
) -> dict[str, cst.BaseExpression] | None:
    """Return the items of a dict, also of one that takes another in; None where not all of them are seen."""
    home = definition(source, node)
    if depth == 0 or (isinstance(node, cst.Name) and _may_change(source, node)):
        return None
    if not (isinstance(home, cst.Dict) or is_dict_call(source, home)):
        return None
    found: dict[str, cst.BaseExpression] = {}
    for star, key, value in _items(home):
        inner = {key: value} if key else _written(source, value, depth - 1) if star == "**" else None
        if inner is None:
            return None
        found |= inner
    return found


def _items(home: cst.BaseExpression) -> Iterator[tuple[str, str, cst.BaseExpression]]:
    """Yield the items of ``{"a": 1, **more}`` and ``dict(a=1, **more)``: the stars, the key, the value."""
    for each in home.elements if isinstance(home, cst.Dict) else ():
        key = each.key if isinstance(each, cst.DictElement) else None
        text = str(key.evaluated_value) if isinstance(key, cst.SimpleString) else ""
        yield "**" if isinstance(each, cst.StarredDictElement) else "", text, each.value
    for arg in home.args if isinstance(home, cst.Call) else ():
        yield arg.star, arg.keyword.value if arg.keyword is not None else "", arg.value


def _may_change(source: Source, name: cst.Name) -> bool:
    """Tell whether a reader of a dict may change it: ``kwargs["a"] = 1``, ``fill(kwargs)``."""
    return any(not _only_looks(source.index, each) for each in source.readers(name))


def _only_looks(index: Index, reader: cst.Name) -> bool:
    above = index.parents[reader]
    if isinstance(above, cst.Arg):
        call = index.parents[above]
        return above.star == "**" or (isinstance(call, cst.Call) and last_name(call.func) in _LOOKS)
    if isinstance(above, cst.Subscript):
        return not isinstance(index.parents[above], (cst.AssignTarget, cst.AugAssign, cst.Del))
    is_read = isinstance(above, cst.Attribute) and above.attr.value in _READS
    return is_read or isinstance(above, (cst.Comparison, cst.ComparisonTarget, cst.StarredDictElement))


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
