"""Names of a sharded model's parameters from outside of ``summon_full_params``, looked for within it.

Without ``use_orig_params=True`` FSDP1 gave flat parameters' names outside, and the model's own within.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.python.last_values import values_set
from fsdp_migrate.source.python.loops import binds, loops_around
from fsdp_migrate.source.python.named_loops import named_loops
from fsdp_migrate.source.python.nodes import dotted, text_of, walk_for


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.parameter_values import ParameterValues
    from fsdp_migrate.source.python.text import Source


_TEXTS: Final = frozenset({"lower", "lstrip", "removeprefix", "removesuffix", "replace", "rstrip", "strip"})
_LISTS: Final = frozenset({"dict", "frozenset", "list", "set", "sorted", "tuple"})
_NAMED: Final = "named_parameters"
_DEEPEST: Final = 4


def looked_for_within(values: ParameterValues, call: cst.Call) -> Iterator[cst.Comparison]:
    """Yield the questions whether a name is among those that were gathered outside: ``name in names``.

    Args:
        values: The parameters of the source.
        call: ``model.named_parameters()``, where the model shows its whole parameters.
    """
    source = values.source
    for loop, _ in named_loops(source.index, call):
        for test in walk_for(loop, cst.Comparison):
            asked = test.comparisons[0]
            is_in = isinstance(asked.operator, (cst.In, cst.NotIn))
            if is_in and any(each is call for each in _made_of(source, test.left)):
                taken = _taken_of(values, asked.comparator)
                if any(map(values.is_list, taken)):
                    yield test


def _made_of(source: Source, node: cst.BaseExpression, depth: int = 0) -> Iterator[cst.Call]:
    """Yield what a text is a name of, also a changed one: ``name.replace("base.", "")``."""
    while isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        if node.func.attr.value not in _TEXTS:
            return
        node = node.func.value
    if not isinstance(node, cst.Name) or node not in source.index.scopes or depth > _DEEPEST:
        return
    for loop in loops_around(source.index, node):
        if binds(loop, node.value):
            target = loop.target
            is_name = isinstance(target, cst.Tuple) and text_of(target.elements[0].value) == node.value
            yield from _named_in(loop.iter) if is_name else ()
            return
    for binding in source.index.scopes[node].lookup(node.value):
        if binding.value is not None and binding.index is None:
            yield from _made_of(source, binding.value, depth + 1)


def _taken_of(values: ParameterValues, node: cst.BaseExpression, depth: int = 0) -> Iterator[cst.Call]:
    """Yield what a list, or a dict, has the names of, outside of where whole parameters are shown."""
    source = values.source
    found: Iterator[cst.Call] = iter(())
    if isinstance(node, (cst.GeneratorExp, cst.ListComp, cst.SetComp)):
        found = _made_of(source, node.elt)
    elif isinstance(node, cst.DictComp):
        found = _made_of(source, node.key)
    elif isinstance(node, (cst.Attribute, cst.Name)):
        found = _held_by(values, node, depth)
    elif (
        isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value == "keys"
    ):
        found = _taken_of(values, node.func.value, depth)
    elif isinstance(node, cst.Call) and dotted(node.func) in _LISTS and node.args:
        given = node.args[0].value
        is_dict = dotted(node.func) == "dict"
        found = _named_in(given) if is_dict else _taken_of(values, given, depth)
    yield from (each for each in found if not source.contexts.is_summoned(each))


def _held_by(values: ParameterValues, node: cst.Attribute | cst.Name, depth: int) -> Iterator[cst.Call]:
    """Yield the same of a name: what it is given, and what is put into it."""
    index = values.source.index
    if node not in index.scopes or depth > _DEEPEST:
        return
    key = values.source.models.key_of(node)
    for put in values.fillings.get(key, ()) if key is not None else ():
        yield from (
            _taken_of(values, put.value, depth + 1)
            if put.is_many
            else _made_of(values.source, put.key or put.value)
        )
    if isinstance(node, cst.Attribute):
        held = list(values_set(index, node))
    else:
        held = [e.value for e in index.scopes[node].lookup(node.value) if e.value and e.index is None]
    for value in held:
        yield from _taken_of(values, value, depth + 1)


def _named_in(node: cst.BaseExpression) -> Iterator[cst.Call]:
    """Yield ``model.named_parameters()`` in what a loop goes through."""
    for call in walk_for(node, cst.Call):
        if isinstance(call.func, cst.Attribute) and call.func.attr.value == _NAMED:
            yield call
