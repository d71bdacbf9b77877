"""The texts that a loop goes through: names of attributes, by which these are read and set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.python.last_values import last_value, value_in_class
from fsdp_migrate.source.python.loops import binds, loops_around
from fsdp_migrate.source.python.nodes import dotted, string_in


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.scopes import Index


_SAME: Final = frozenset({"list", "reversed", "set", "sorted", "tuple"})
_DEEPEST: Final = 3


def texts_gone_through(index: Index, name: cst.Name) -> list[str]:
    """Return the texts that the innermost loop goes through whose target a name is, or a part of it.

    ``for name in ("actor", "critic")``, ``for name, lr in PARTS``, and ``[... for name in self.PARTS]``.
    """
    loop = next((each for each in loops_around(index, name) if binds(each, name.value)), None)
    found = [] if loop is None else [*_texts(index, loop.target, loop.iter, name.value, 0)]
    return [each for each in dict.fromkeys(found) if each.isidentifier()]


def _texts(
    index: Index, target: cst.BaseExpression, over: cst.BaseExpression, name: str, depth: int
) -> Iterator[str]:
    if depth > _DEEPEST:
        return
    if isinstance(over, cst.Call):
        yield from _of_call(index, target, over, name, depth)
        return
    if isinstance(over, (cst.Attribute, cst.Name)):
        value = _value(index, over)
        yield from () if value is None else _texts(index, target, value, name, depth + 1)
        return
    if isinstance(over, cst.Dict):
        keys = [each.key for each in over.elements if isinstance(each, cst.DictElement)]
        yield from filter(None, map(string_in, keys if dotted(target) == name else ()))
        return
    for each in over.elements if isinstance(over, (cst.List, cst.Set, cst.Tuple)) else ():
        text = string_in(_part(target, each.value, name))
        yield from () if text is None else (text,)


def _of_call(
    index: Index, target: cst.BaseExpression, over: cst.Call, name: str, depth: int
) -> Iterator[str]:
    parts = [each.value for each in target.elements] if isinstance(target, (cst.List, cst.Tuple)) else []
    func, given = dotted(over.func), [arg.value for arg in over.args]
    if func == "enumerate" and len(parts) == 2 and given:
        yield from _texts(index, parts[1], given[0], name, depth + 1)
    elif func == "zip" and len(parts) == len(given):
        for part, each in zip(parts, given, strict=True):
            yield from _texts(index, part, each, name, depth + 1)
    elif func in _SAME and len(given) == 1:
        yield from _texts(index, target, given[0], name, depth + 1)
    elif isinstance(over.func, cst.Attribute) and not given:
        method = over.func.attr.value
        first = parts[0] if method == "items" and parts else target
        if method in {"items", "keys"}:
            yield from _texts(index, first, over.func.value, name, depth + 1)


def _part(target: cst.BaseExpression, value: cst.BaseExpression, name: str) -> cst.BaseExpression | None:
    """Return what a name of a target is given of what a round gives."""
    if not isinstance(target, (cst.List, cst.Tuple)):
        return value if dotted(target) == name else None
    if isinstance(value, (cst.List, cst.Tuple)) and len(value.elements) == len(target.elements):
        pairs = zip(target.elements, value.elements, strict=True)
        found = (_part(part.value, each.value, name) for part, each in pairs)
        return next((each for each in found if each is not None), None)
    return None


def _value(index: Index, over: cst.Attribute | cst.Name) -> cst.BaseExpression | None:
    """Return what is gone through by a name, or by an attribute that the class gives its objects."""
    if isinstance(over, cst.Name):
        return last_value(index, over) if over in index.scopes else None
    return last_value(index, over) or value_in_class(index, over)
