"""What functions of a source give of a model's parameters: lists that they fill, and return."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.links import OBJECT, PART
from fsdp_migrate.source.python.nodes import argument_of, dotted, last_name, text_of, walk_for
from fsdp_migrate.source.python.parameter_lists import shares
from fsdp_migrate.source.python.parameters import SAME_PARAMETERS
from fsdp_migrate.source.python.wrapped_in_place import given_for
from fsdp_migrate.source.python.written_names import written_names


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.links import GivenParameters
    from fsdp_migrate.source.python.text import Source


_DEEPEST = 3


def returned_shares(
    source: Source, node: cst.BaseExpression, place: tuple[int, int] | None = None
) -> Iterator[cst.BaseExpression]:
    """Yield the models, as a call is given them, whose parameters the function returns that it calls.

    Args:
        source: The source.
        node: The call, ``pick(model)``, or ``list(pick(model))``.
        place: Of what is taken apart, ``a, b = pick(model)``, which part, and how many there are.
    """
    if not isinstance(node, cst.Call):
        return
    if last_name(node.func) in SAME_PARAMETERS and place is None:
        for arg in node.args:
            yield from returned_shares(source, arg.value)
        return
    yield from told_shares(source, node, place)
    for function in source.models.guards.functions(node.func):
        for line in walk_for(function.body, cst.Return):
            value = _part(line.value, place) if source.index.function(line) is function else None
            for share in shares(source.index, value) if value is not None else ():
                yield from _as_called(source, node, function, share.model)


def told_shares(
    source: Source, call: cst.Call, place: tuple[int, int] | None
) -> Iterator[cst.BaseExpression]:
    """Yield the same models where other files tell what the function gives that is called."""
    for part, size, number, name in _told(source, call) if source.links.gives_parameters else ():
        if (part, size) != (place or (-1, 0)):
            continue
        if number == OBJECT:
            yield from [call.func.value] if isinstance(call.func, cst.Attribute) else ()
        elif number == PART:
            yield from _beside(source, call, int(name), size)
        elif (given := argument_of(call, number, {name})) is not None:
            yield given


def _told(source: Source, call: cst.Call) -> Iterator[GivenParameters]:
    names = written_names(source.index, call.func) or {dotted(call.func) or ""}
    for name in names:
        yield from source.links.gives_parameters.get(name, ())


def _beside(source: Source, call: cst.Call, number: int, size: int) -> Iterator[cst.BaseExpression]:
    """Yield the name that stands beside another where a tuple is taken apart: ``net, params = build()``."""
    above = source.index.parents[call]
    for each in above.targets if isinstance(above, cst.Assign) else ():
        parts = each.target.elements if isinstance(each.target, (cst.Tuple, cst.List)) else ()
        yield from [parts[number].value] if len(parts) == size else ()


def _as_called(
    source: Source, call: cst.Call, function: cst.FunctionDef, model: cst.BaseExpression
) -> Iterator[cst.BaseExpression]:
    """Yield what the place of a call has for a model of the function that is called."""
    root = root_of(source, model)
    if root in {"self", "cls"} and isinstance(call.func, cst.Attribute):
        # Of its own object: `self.net` is the same in both, and of another it is a part of that.
        yield model if text_of(call.func.value) == root else call.func.value
        return
    given = given_for(call, function, root)
    yield from () if given is None else (given,)


def _part(value: cst.BaseExpression | None, place: tuple[int, int] | None) -> cst.BaseExpression | None:
    if not isinstance(value, cst.Tuple):
        return value if place is None else None
    if place is None or len(value.elements) != place[1]:
        return None
    return value.elements[place[0]].value


def root_of(source: Source, node: cst.BaseExpression) -> str:
    """Return the name that a part of a model is of: also of ``base = getattr(model, "base", model)``."""
    for _ in range(_DEEPEST):
        while isinstance(node, cst.Attribute):
            node = node.value
        if not isinstance(node, cst.Name):
            return ""
        value = last_value(source.index, node) if node in source.index.scopes else None
        if isinstance(value, cst.Call) and _is_a_part(value):
            value = value.args[0].value
        if not isinstance(value, (cst.Name, cst.Attribute)):
            return node.value if value is None and _is_parameter(source, node) else ""
        node = value
    return ""


def _is_parameter(source: Source, name: cst.Name) -> bool:
    """Tell whether a name is what its function was given, and nothing else: in ``net = net.base`` too."""
    scope = source.index.scopes.get(name)
    above = {name, *source.index.ancestors(name)}
    bound = [] if scope is None else [each for each in scope.lookup(name.value) if each.value not in above]
    return [each.kind for each in bound] == ["param"]


def _is_a_part(call: cst.Call) -> bool:
    """Tell whether a call gives a part of what it is given, or what that wraps: no copy of it."""
    name = last_name(call.func)
    return bool(call.args) and (name == "getattr" or name.startswith("unwrap"))
