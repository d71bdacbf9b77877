"""What is asked of an object of a class of the same source: ``ema.shadow`` after ``ema = EMA(model)``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.by_name import is_property
from fsdp_migrate.source.python.last_values import stands_for, values_set
from fsdp_migrate.source.python.nodes import dotted, placed_parameters, walk_for
from fsdp_migrate.source.python.object_fields import classes


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


_DEEPEST = 4


def set_in_class(source: Source, node: cst.Attribute) -> Iterator[cst.Attribute]:
    """Yield ``self.shadow`` for ``ema.shadow``, once for each class that the object may be of."""
    for owner in _classes_of(source, node.value):
        name = f"self.{node.attr.value}"
        its = (each.target for each in source.index.places_set(name) if source.index.class_of(each) is owner)
        first = next(its, None)
        if isinstance(first, cst.Attribute):
            yield first


def methods_of(source: Source, func: cst.BaseExpression) -> Iterator[cst.FunctionDef]:
    """Yield the methods that ``ema.state`` may be, of the classes of this source."""
    if not isinstance(func, cst.Attribute):
        return
    for owner in _classes_of(source, func.value):
        for line in owner.body.body:
            if isinstance(line, cst.FunctionDef) and line.name.value == func.attr.value:
                yield line


def property_of(source: Source, node: cst.Attribute) -> Iterator[cst.BaseExpression]:
    """Yield what a property of a class of this source returns: of ``self.params``, or of ``task.params``."""
    own = source.index.class_of(node) if dotted(node.value) in {"self", "cls"} else None
    lines = own.body.body if own is not None else ()
    its = [each for each in lines if isinstance(each, cst.FunctionDef) and each.name.value == node.attr.value]
    for function in filter(is_property, (*its, *methods_of(source, node))):
        for given in walk_for(function.body, cst.Return):
            if given.value is not None and source.index.function(given) is function:
                yield given.value


def given_to_method(source: Source, name: cst.Name) -> Iterator[cst.BaseExpression]:
    """Yield what calls give to a method's argument: ``self.dot(a, b)``, ``tasks.dot(a, b)``, by its place."""
    index, function = source.index, source.index.function(name)
    owner = index.class_of(function) if function is not None else None
    names = [each.name.value for each in placed_parameters(function)] if function is not None else []
    if function is None or owner is None or name.value not in names[0 if _is_static(function) else 1 :]:
        return
    place = names.index(name.value) - (0 if _is_static(function) else 1)
    for call in index.calls_of_method(function.name.value):
        func = cst.ensure_type(call.func, cst.Attribute)
        is_own = dotted(func.value) in {"self", "cls", owner.name.value} and index.class_of(call) is owner
        if not is_own and function not in methods_of(source, func):
            continue
        named = [each.value for each in call.args if each.keyword and each.keyword.value == name.value]
        placed = call.args[: place + 1]
        is_placed = len(placed) > place and not any(each.star or each.keyword for each in placed)
        yield from named or ([placed[-1].value] if is_placed else ())


def _is_static(function: cst.FunctionDef) -> bool:
    return any(dotted(each.decorator) == "staticmethod" for each in function.decorators)


def _classes_of(source: Source, node: cst.BaseExpression) -> Iterator[cst.ClassDef]:
    """Yield the classes of this source that an object may be of, and those that they derive from."""
    if dotted(node) in {"self", "cls"}:
        # What the class has itself is looked at by its name.
        owner = source.index.class_of(node)
        yield from _bases(source, owner, 0) if owner is not None else ()
        return
    for made in _makers(source, node, 0):
        for owner in classes(source.index, made.func):
            yield owner
            yield from _bases(source, owner, 0)


def _bases(source: Source, owner: cst.ClassDef, depth: int) -> Iterator[cst.ClassDef]:
    for base in owner.bases if depth < _DEEPEST else ():
        for above in classes(source.index, base.value):
            yield above
            yield from _bases(source, above, depth + 1)


def _makers(source: Source, node: cst.BaseExpression, depth: int) -> Iterator[cst.Call]:
    """Yield the calls that make an object, but for those in a context in which parameters are whole."""
    values: list[cst.BaseExpression] = []
    if depth > _DEEPEST:
        return
    if isinstance(node, cst.Call):
        if not source.contexts.is_summoned(node):
            yield node
    elif isinstance(node, cst.IfExp):
        values = [node.body, node.orelse]
    elif isinstance(node, cst.Attribute):
        values = values_set(source.index, node)
    elif isinstance(node, cst.Name) and node in source.index.scopes:
        bound = source.index.bindings_of(node)
        values = [each.value for each in bound if each.value is not None and each.index is None]
        values += [
            each for each in stands_for(source.index, source.models.guards, node) if each not in values
        ]
    for value in values:
        yield from _makers(source, value, depth + 1)
