"""Counts of a sharded model by its class or by a function: ``model.num_params``, ``count(model)``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.newer_syntax import parse_any
from fsdp_migrate.source.local_numbers import asks_whether_empty
from fsdp_migrate.source.python.counted import is_about_ranks, meets_ranks
from fsdp_migrate.source.python.counting_methods import (
    OF_TRANSFORMERS,
    counting_functions,
    counting_methods,
    may_count,
)
from fsdp_migrate.source.python.nodes import dotted, last_name
from fsdp_migrate.source.python.strategies import are_whole


if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from fsdp_migrate.source.parameter_values import ParameterValues


ELEMENTS: Final = (
    "stays: numel() counts the whole parameter now, the same on each rank, where FSDP1's was this rank's "
    "part of a flat one, padding too: this number is another one. .to_local().numel() is this rank's"
)
_SIZES: Final = frozenset({"nelement", "numel"})
_MOST = 3
"""The arguments of ``getattr(model, name, default)``."""


def counts_about_ranks(values: ParameterValues) -> Iterator[cst.BaseExpression]:
    """Yield where a sharded model is asked for such a count, and it goes into something about ranks.

    ``numel()`` stands in the class, which says nothing of ranks: it is named where it is asked for.
    """
    source = values.source
    if are_whole(source.models):
        return  # NO_SHARD's were whole before
    yield from _given_counts(values)
    own = counting_methods([parse_any(source.code)]) if may_count(source.code) else frozenset()
    names = OF_TRANSFORMERS | source.links.counting_methods | own
    if not any(name in source.code for name in names):
        return
    nodes: list[cst.Attribute | cst.Call] = [*source.attributes, *source.calls]
    for node in nodes:
        asked = _asked(node)
        if asked is None or asked[1] not in names or not values.is_sharded(asked[0]):
            continue
        if is_about_ranks(source.index, node):
            yield node


def counts_of_elements(values: ParameterValues, named: Container[cst.CSTNode]) -> Iterator[cst.Call]:
    """Yield where elements of a sharded model's parameters are counted, and nothing else is said of it.

    The number is another one; it is of no rank any more, and so nothing is done wrongly with it.
    """
    source = values.source
    # NO_SHARD's were whole before: nothing is another number.
    for call in () if are_whole(source.models) else source.calls:
        func = call.func
        if not isinstance(func, cst.Attribute) or func.attr.value not in _SIZES or call in named:
            continue
        is_its = values.is_one(func.value) and not source.contexts.is_summoned(call)
        if is_its and not asks_whether_empty(source, call):
            yield call


def _given_counts(values: ParameterValues) -> Iterator[cst.Call]:
    """Yield where a function counts a sharded model that it is given: ``count(model) * world_size``."""
    source = values.source
    names = source.links.counting_functions
    if may_count(source.code):
        names |= counting_functions([parse_any(source.code)])
    for call in source.calls if names else ():
        if last_name(call.func) in names and not source.contexts.is_summoned(call):
            is_its = any(values.is_sharded(arg.value) for arg in call.args)
            if is_its and meets_ranks(source.index, call):
                yield call


def _asked(node: cst.Attribute | cst.Call) -> tuple[cst.BaseExpression, str] | None:
    """Return whom an expression asks, and for what: ``model.name``, ``getattr(model, "name", 0)``."""
    if isinstance(node, cst.Attribute):
        return node.value, node.attr.value
    if dotted(node.func) != "getattr" or len(node.args) not in {2, _MOST}:
        return None
    name = node.args[1].value
    if not isinstance(name, cst.SimpleString):
        return None
    return node.args[0].value, str(name.evaluated_value)
