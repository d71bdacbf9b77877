"""Arguments of a call that stand in a tuple or a dict above it: ``f(model, *FULL)``, ``f(**kw)``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import libcst as cst

from fsdp_migrate.source.python.last_values import last_value, value_in_class
from fsdp_migrate.source.python.nodes import dotted, string_in, text_of


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fsdp_migrate.source.python.scopes import Index


_DEEPEST: Final = 4
_ASK: Final = frozenset({"copy", "get", "items", "keys", "values"})


class Held(NamedTuple):
    """An argument: the expression that is given, and the variable it stands in, if it is one's value."""

    value: cst.BaseExpression
    variable: cst.Name | cst.Attribute | None


def held_arguments(index: Index, call: cst.Call, names: Sequence[str]) -> dict[str, Held] | None:
    """Return the arguments of a call by their names, read from tuples and dicts; None if some are not seen.

    Args:
        index: The source.
        call: The call.
        names: The names of the parameters in the order of their positions.
    """
    found: dict[str, Held] = {}
    placed = iter(names)
    for arg in call.args:
        if not arg.star:
            name = arg.keyword.value if arg.keyword is not None else next(placed, None)
            given: list[tuple[str | None, Held]] | None = [(name, _value(index, arg.value))]
        elif arg.star == "*":
            each = _items(index, arg.value)
            given = None if each is None else [(next(placed, None), held) for held in each]
        else:
            given = _entries(index, arg.value)
        if given is None or any(name is None or name in found for name, _ in given):
            return None
        found.update((name, held) for name, held in given if name is not None)
    return found


def _value(index: Index, node: cst.BaseExpression) -> Held:
    """Return what an argument is: an item of a literal above, or the argument itself, a variable too."""
    if isinstance(node, cst.Subscript):
        return _item_of(index, node, 0) or Held(node, None)
    if isinstance(node, cst.Name) and node in index.scopes:
        # `kind, config = KINDS["full"]`
        bindings = index.bindings_of(node)
        place = bindings[0].index if len(bindings) == 1 else None
        source = bindings[0].value if place is not None else None
        held = _literal(index, source, 0) if source is not None else None
        parts = _elements(held) if held is not None else None
        if parts is not None and place is not None and place < len(parts):
            return Held(parts[place], node)
    return Held(node, None)


def _items(index: Index, node: cst.BaseExpression) -> list[Held] | None:
    held = _literal(index, node, 0)
    parts = _elements(held) if held is not None else None
    return None if held is None or parts is None else [Held(each, held.variable) for each in parts]


def _elements(held: Held) -> list[cst.BaseExpression] | None:
    if not isinstance(held.value, (cst.List, cst.Tuple)):
        return None
    parts = held.value.elements
    return [each.value for each in parts] if all(isinstance(each, cst.Element) for each in parts) else None


def _entries(index: Index, node: cst.BaseExpression) -> list[tuple[str | None, Held]] | None:
    held = _literal(index, node, 0)
    pairs = list(_pairs(held.value)) if held is not None else [None]
    if held is None or None in pairs:
        return None
    return [(each[0], Held(each[1], held.variable)) for each in pairs if each is not None]


def _pairs(node: cst.BaseExpression) -> Iterator[tuple[str | None, cst.BaseExpression] | None]:
    """Yield the entries of a dict by their names; None for what is no dict, or not seen."""
    if isinstance(node, cst.Dict):
        for each in node.elements:
            yield (string_in(each.key), each.value) if isinstance(each, cst.DictElement) else None
    elif isinstance(node, cst.Call) and dotted(node.func) == "dict":
        for arg in node.args:
            yield (arg.keyword.value, arg.value) if arg.keyword is not None else None
    else:
        yield None


def _literal(index: Index, node: cst.BaseExpression, depth: int) -> Held | None:
    """Return the tuple, list or dict that an expression is, or that a variable holds unchanged."""
    if isinstance(node, cst.Subscript):
        inner = _item_of(index, node, depth)
        return None if inner is None else _literal_within(index, inner, depth)
    if not isinstance(node, (cst.Attribute, cst.Name)):
        return Held(node, None)
    if depth > _DEEPEST or node not in index.scopes or _is_changed(index, node):
        return None
    value = last_value(index, node)
    if value is None and isinstance(node, cst.Attribute):
        value = value_in_class(index, node)
    return None if value is None else _literal_within(index, Held(value, node), depth)


def _literal_within(index: Index, held: Held, depth: int) -> Held | None:
    inner = _literal(index, held.value, depth + 1)
    return None if inner is None else Held(inner.value, held.variable or inner.variable)


def _item_of(index: Index, node: cst.Subscript, depth: int) -> Held | None:
    """Return the item of a literal that a subscript takes by a literal key or place."""
    inner = node.slice[0].slice if len(node.slice) == 1 else None
    key = inner.value if isinstance(inner, cst.Index) else None
    held = _literal(index, node.value, depth + 1)
    if key is None or held is None:
        return None
    name = string_in(key)
    if name is not None:
        pairs = list(_pairs(held.value))
        values = [each[1] for each in pairs if each is not None and each[0] == name]
        return Held(values[0], held.variable) if len(values) == 1 and None not in pairs else None
    parts = _elements(held)
    place = int(key.value) if isinstance(key, cst.Integer) and key.value.isdecimal() else -1
    return Held(parts[place], held.variable) if parts is not None and 0 <= place < len(parts) else None


def _is_changed(index: Index, node: cst.Name | cst.Attribute) -> bool:
    """Tell whether items may be put into what a variable holds: ``kw["x"] = 1``, ``kw.update(...)``."""
    text = text_of(node)
    for kind in (cst.Attribute, cst.Name):
        for each in index.by_kind.get(kind, ()):
            if text_of(each) != text:
                continue
            above = index.parents[each]
            outer = index.parents.get(above)
            is_target = isinstance(outer, (cst.AssignTarget, cst.AugAssign, cst.Del))
            if isinstance(above, cst.Subscript) and above.value is each and is_target:
                return True
            is_asked = (
                isinstance(above, cst.Attribute) and above.value is each and isinstance(outer, cst.Call)
            )
            if is_asked and isinstance(above, cst.Attribute) and above.attr.value not in _ASK:
                return True
            if isinstance(above, cst.AugAssign) and above.target is each:
                return True
    return False
