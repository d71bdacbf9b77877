"""What a tensor is made of, or is in another form: ``p`` of ``p.grad.clone()`` and of ``p ** 2``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.last_values import values_reaching
from fsdp_migrate.source.python.nodes import dotted, last_name, text_of, walk_for
from fsdp_migrate.source.python.parameters import SAME_PARAMETERS
from fsdp_migrate.source.python.tensor_words import SAME, gives_its_kind, gives_kind_of_given


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.scopes import Binding
    from fsdp_migrate.source.python.text import Source


_COMPARES = (
    cst.Equal,
    cst.GreaterThan,
    cst.GreaterThanEqual,
    cst.LessThan,
    cst.LessThanEqual,
    cst.NotEqual,
)
# `torch.abs(p)` is no method of what is called torch.
_LIBRARIES = frozenset({"F", "np", "numpy", "torch", "torch.nn.functional"})
_COMPREHENSIONS = (cst.ListComp, cst.SetComp, cst.GeneratorExp)
_APART = re.compile(r"full_tensor|gather|_local_tensor|redistribute|to_local|unshard")
_ASKS = re.compile(rf"DTensor|is_dtensor|{_APART.pattern}")
_MAKES = re.compile(r"\b(?:distribute_tensor|from_local)\(")


def holds_the_same(source: Source, binding: Binding, name: str) -> bool:
    """Tell whether a name is given what it held already: ``x = [x]``, ``x = list(x)``, ``p = p.cpu()``."""
    value = binding.value if binding.index is None else None
    if isinstance(value, cst.IfExp):
        return all(_is_of_the_same(source, each, name) for each in (value.body, value.orelse))
    return isinstance(value, cst.BaseExpression) and _is_of_the_same(source, value, name)


def _is_of_the_same(source: Source, value: cst.BaseExpression, name: str) -> bool:
    if isinstance(value, (cst.List, cst.Tuple)):
        return [text_of(each.value) for each in value.elements] == [name]
    if isinstance(value, _COMPREHENSIONS):
        over = value.for_in
        is_each = _innermost(source, value.elt, until=text_of(over.target)) == text_of(over.target)
        return is_each and over.inner_for_in is None and text_of(over.iter) == name
    is_call = isinstance(value, cst.Call) and last_name(value.func) in SAME_PARAMETERS
    if isinstance(value, cst.Call) and is_call:
        return [text_of(arg.value) for arg in value.args if arg.keyword is None] == [name]
    return _innermost(source, value, until=name) == name


def _innermost(source: Source, value: cst.BaseExpression, *, until: str) -> str:
    """Return what a value in another form is taken of: ``p`` of ``p.data.clone()``."""
    node = value
    while text_of(node) != until and (inner := inner_of(source, node)) is not None:
        node = inner
    return text_of(node)


def inner_of(source: Source, node: cst.BaseExpression) -> cst.BaseExpression | None:
    """Return what ``.grad``, ``.data``, ``.detach()`` and the like are taken of."""
    if isinstance(node, cst.Attribute) and node.attr.value in SAME:
        return node.value
    if isinstance(node, cst.UnaryOperation) and not isinstance(node.operator, cst.Not):
        return node.expression
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
        return None
    is_one = gives_its_kind(node.func.attr.value) and dotted(node.func.value) not in _LIBRARIES
    is_one = is_one and not source.index.qualified(node.func)
    return node.func.value if is_one else None


def parts_of(
    source: Source, node: cst.BinaryOperation | cst.Comparison | cst.Call
) -> Iterator[cst.BaseExpression]:
    """Yield what a tensor is made of, value by value: ``p ** 2``, ``p == 0``, ``torch.abs(p)``."""
    if isinstance(node, cst.BinaryOperation):
        yield from (node.left, node.right)
    elif isinstance(node, cst.Comparison):
        compared = [each.comparator for each in node.comparisons if isinstance(each.operator, _COMPARES)]
        yield from (node.left, *compared) if compared else ()
    elif any(map(gives_kind_of_given, source.index.qualified(node.func))):
        yield from (arg.value for arg in node.args if not arg.star)


def given_in_branches(source: Source, name: cst.Name) -> list[cst.BaseExpression]:
    """Return what a name may hold where branches come together, if none of them takes DTensors apart.

    ``g = p.grad``, ``if not isinstance(g, DTensor): g = DTensor.from_local(g, mesh)`` leaves them whole.
    """
    given = values_reaching(source.index, name)
    return [] if any(_takes_apart(source, *each) for each in given) else [value for value, _ in given]


def _takes_apart(source: Source, value: cst.BaseExpression, target: cst.CSTNode) -> bool:
    """Tell whether an assignment makes a plain tensor of a DTensor, or stands where that is asked for."""
    text, functions = text_of(value), source.models.guards.functions
    called = (each for call in walk_for(value, cst.Call) for each in functions(call.func))
    if _APART.search(text) is not None or any(map(makes_plain, called)):
        return True
    tests = (each.test for each in source.index.ancestors(target) if isinstance(each, cst.If))
    return _MAKES.search(text) is None and any(_ASKS.search(text_of(each)) is not None for each in tests)


def makes_plain(function: cst.FunctionDef) -> bool:
    """Tell whether a function makes plain tensors of DTensors."""
    attributes = (each.attr.value for each in walk_for(function.body, cst.Attribute))
    return any(name in {"full_tensor", "to_local"} for name in attributes)
