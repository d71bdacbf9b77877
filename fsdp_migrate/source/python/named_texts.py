"""Which texts a name may hold: those of a literal that a loop goes through, of a constant, of an argument."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.last_values import last_value, stands_for
from fsdp_migrate.source.python.nodes import dotted, walk_for


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.guards import Guards


_DEEPEST = 4
_SAME = frozenset({"frozenset", "iter", "list", "reversed", "set", "sorted", "tuple"})
_OF_DICTS = frozenset({"items", "keys"})


def texts_of(guards: Guards, name: cst.Name) -> set[str]:
    """Return the texts that a name may hold where it is used; an empty set where none is seen."""
    loop = _loop_of(guards, name)
    if loop is not None:
        return set(_inside(guards, loop, name.value))
    value = last_value(guards.index, name) if name in guards.index.scopes else None
    given = [value] if value is not None else list(stands_for(guards.index, guards, name))
    return {str(each.evaluated_value) for each in given if isinstance(each, cst.SimpleString)}


def _loop_of(guards: Guards, name: cst.Name) -> cst.For | cst.CompFor | None:
    """Return the innermost loop around a name that it is the target of."""
    for above in guards.index.ancestors(name):
        if isinstance(above, cst.For) and _binds(above, name):
            return above
        if isinstance(above, cst.BaseComp):
            each: cst.CompFor | None = above.for_in
            while each is not None:
                if _binds(each, name):
                    return each
                each = each.inner_for_in
        if isinstance(above, (cst.FunctionDef, cst.ClassDef)):
            return None
    return None


def _binds(loop: cst.For | cst.CompFor, name: cst.Name) -> bool:
    return any(each.value == name.value for each in walk_for(loop.target, cst.Name))


def _inside(guards: Guards, loop: cst.For | cst.CompFor, name: str) -> Iterator[str]:
    """Yield the texts that a loop's target goes through, of pairs those at its place in the target."""
    place = None
    if isinstance(loop.target, (cst.Tuple, cst.List)):
        names = [dotted(each.value) for each in loop.target.elements]
        place = names.index(name) if name in names else None
    over = loop.iter
    if isinstance(over, cst.Call) and place is not None:
        called = dotted(over.func) or ""
        if called == "zip" and place < len(over.args):
            over, place = over.args[place].value, None
        elif called == "enumerate" and over.args and place == 1:
            over, place = over.args[0].value, None
        elif called.endswith(".items") and place:
            return  # the values of a dict
    for each in _elements(guards, over, 0):
        is_part = place is not None and isinstance(each, (cst.Tuple, cst.List))
        parts = each.elements[place:] if is_part and isinstance(each, (cst.Tuple, cst.List)) else ()
        text = parts[0].value if parts else each
        if isinstance(text, cst.SimpleString):
            yield str(text.evaluated_value)


def _elements(guards: Guards, node: cst.BaseExpression, depth: int) -> Iterator[cst.BaseExpression]:
    """Yield what is written in a list, a tuple, a set, or as the keys of a dict, here or under a name."""
    if depth > _DEEPEST:
        return
    if isinstance(node, (cst.List, cst.Tuple, cst.Set)):
        yield from (each.value for each in node.elements)
    elif isinstance(node, cst.Dict):
        yield from (each.key for each in node.elements if isinstance(each, cst.DictElement))
    elif isinstance(node, cst.BinaryOperation):
        yield from _elements(guards, node.left, depth + 1)
        yield from _elements(guards, node.right, depth + 1)
    elif isinstance(node, cst.Call):
        func = node.func
        if isinstance(func, cst.Attribute) and func.attr.value in _OF_DICTS:
            yield from _elements(guards, func.value, depth + 1)
        elif dotted(func) in _SAME and node.args:
            yield from _elements(guards, node.args[0].value, depth + 1)
    elif isinstance(node, (cst.Name, cst.Attribute)):
        held = _held(guards, node)
        if held is not None:
            yield from _elements(guards, held, depth + 1)


def _held(guards: Guards, node: cst.Name | cst.Attribute) -> cst.BaseExpression | None:
    """Return what a name, ``self.names``, or an attribute of a class of the source holds."""
    index = guards.index
    if isinstance(node, cst.Name):
        return last_value(index, node) if node in index.scopes else None
    value = last_value(index, node)
    if value is not None:
        return value
    root = dotted(node.value)
    owner = index.class_of(node)
    if root not in {"self", "cls"}:
        found = index.bindings_of(node.value) if isinstance(node.value, cst.Name) else []
        owner = next((each.node for each in found if isinstance(each.node, cst.ClassDef)), None)
    for each in index.by_kind.get(cst.Assign, ()) if owner is not None else ():
        assign = cst.ensure_type(each, cst.Assign)
        is_of_class = index.class_of(assign) is owner and index.function(assign) is None
        if is_of_class and any(dotted(target.target) == node.attr.value for target in assign.targets):
            return assign.value
    return None
