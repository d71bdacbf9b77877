"""Whose parameters a list holds: of which models, in whole or in part."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.containers import is_slice
from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.nodes import dotted, last_name, named_arguments, text_of, walk_for
from fsdp_migrate.source.python.parameters import (
    PARAMETERS,
    SAME_PARAMETERS,
    model_of,
    parameters_of,
    put_as_it_is,
)


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fsdp_migrate.source.python.scopes import Index


_VIEWS = frozenset({"items", "values"})
_PARAMETERS = re.compile(r"(^|_)(trainable|params?|parameters)(_|$)")
_COUNTS = re.compile(r"num|count|size|total|(^|_)n_|efficient|freeze")
_MAX_DEPTH = 8
_WEIGHTS = frozenset({"bias", "weight"})
_MODULES = frozenset({"children", "modules", "named_children", "named_modules"})
_JOINS = frozenset({"from_iterable", "sum"})


@dataclass(frozen=True)
class Share:
    """The parameters of one model in a list."""

    model: cst.BaseExpression
    is_filtered: bool = False
    """Whether some may be left out."""


def shares(index: Index, node: cst.BaseExpression) -> list[Share]:
    """Return the models whose parameters an expression is, or holds, as they are and not as copies."""
    return list(_shares(index, node, 0))


def _shares(index: Index, node: cst.BaseExpression, depth: int) -> Iterator[Share]:
    if depth > _MAX_DEPTH:
        return
    if isinstance(node, (cst.Name, cst.Attribute)):
        yield from _of_name(index, node, depth)
    elif isinstance(node, cst.Call):
        yield from _of_call(index, node, depth)
    elif isinstance(node, (cst.ListComp, cst.SetComp, cst.GeneratorExp, cst.DictComp)):
        yield from _of_comprehension(index, node, depth)
    elif isinstance(node, cst.Subscript):
        if is_slice(node):
            yield from map(_filtered, _shares(index, node.value, depth + 1))
    else:
        for part in _parts(node):
            if isinstance(part, cst.Attribute) and part.attr.value in _WEIGHTS:
                yield Share(part.value, is_filtered=True)
            yield from _shares(index, part, depth + 1)


def _of_comprehension(
    index: Index, node: cst.ListComp | cst.SetComp | cst.GeneratorExp | cst.DictComp, depth: int
) -> Iterator[Share]:
    """Yield the models of ``[p for p in net.parameters()]``, also of ids, and of two loops in one."""
    gives = [node.key, node.value] if isinstance(node, cst.DictComp) else [node.elt]
    loops = [node.for_in]
    while loops[-1].inner_for_in is not None:
        loops.append(loops[-1].inner_for_in)
    names = parameters_of(loops[-1])
    if not any(names & set(_held_as(each)) for each in gives):
        return
    is_filtered = any(loop.ifs for loop in loops)
    for share in _shares(index, loops[-1].iter, depth + 1):
        for model in gone_through(share.model, loops[:-1]):
            yield replace(share, model=model, is_filtered=share.is_filtered or is_filtered)


def _held_as(node: cst.BaseExpression) -> Iterator[str]:
    """Yield the names of what a list holds as it is, or knows again by ``id(p)``."""
    if isinstance(node, cst.Call) and dotted(node.func) == "id" and node.args:
        node = node.args[0].value
    yield from put_as_it_is(node)


def gone_through(
    model: cst.BaseExpression, loops: Sequence[cst.For | cst.CompFor]
) -> Iterator[cst.BaseExpression]:
    """Yield what a model is that loops go through: each of ``for m in (net.a, net.b)``, or ``nets``."""
    for loop in loops:
        if text_of(loop.target) == text_of(model):
            over = loop.iter
            several = over.elements if isinstance(over, (cst.List, cst.Tuple)) else ()
            yield from [each.value for each in several] or [modules_of(over)]
            return
    yield model


def modules_of(node: cst.BaseExpression) -> cst.BaseExpression:
    """Return the model of ``model.modules()``."""
    func = node.func if isinstance(node, cst.Call) else None
    is_its = isinstance(func, cst.Attribute) and func.attr.value in _MODULES
    return cst.ensure_type(func, cst.Attribute).value if is_its else node


def _parts(node: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """Yield what a list is put together of."""
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Add):
        yield from (node.left, node.right)
    elif isinstance(node, cst.IfExp):
        yield from (node.body, node.orelse)
    elif isinstance(node, (cst.List, cst.Tuple, cst.Set, cst.Dict)):
        yield from (each.value for each in node.elements)


def _of_name(index: Index, node: cst.Name | cst.Attribute, depth: int) -> Iterator[Share]:
    if isinstance(node, cst.Name) and node not in index.scopes:
        return
    value = last_value(index, node)
    found = [] if value is None else list(_shares(index, value, depth + 1))
    if not found and isinstance(node, cst.Name) and (filled := model_of(index, node)) is not None:
        found = [Share(filled, is_filtered=True)]  # by a loop, which may leave some out
    yield from found


def _of_call(index: Index, call: cst.Call, depth: int) -> Iterator[Share]:
    func, name = call.func, last_name(call.func)
    if isinstance(func, cst.Attribute) and func.attr.value in PARAMETERS:
        yield Share(func.value)
    elif isinstance(func, cst.Attribute) and func.attr.value in _VIEWS:
        yield from _shares(index, func.value, depth + 1)
    elif name == "map" and len(call.args) == 2 and dotted(call.args[0].value) == "id":
        yield from _shares(index, call.args[1].value, depth + 1)
    elif name in SAME_PARAMETERS or name in _JOINS:
        for arg in call.args:
            found = list(_shares(index, arg.value, depth + 1)) or list(_each_of(index, arg.value, depth))
            yield from map(_filtered, found) if name == "filter" else found


def _each_of(index: Index, node: cst.BaseExpression, depth: int) -> Iterator[Share]:
    """Yield those of ``chain.from_iterable(m.parameters() for m in nets)``, which holds lists of them."""
    if isinstance(node, (cst.GeneratorExp, cst.ListComp)) and isinstance(node.elt, cst.Call):
        for share in _shares(index, node.elt, depth + 1):
            for model in gone_through(share.model, [node.for_in]):
                yield replace(share, model=model)


def _filtered(share: Share) -> Share:
    return replace(share, is_filtered=True)


def named_as_parameters(node: cst.BaseExpression, target: str) -> cst.BaseExpression | None:
    """Return the model of which a function gives parameters, as names tell: ``trainable_params(model)``."""
    if not isinstance(node, cst.Call):
        return None
    name = last_name(node.func)
    told = [each.lower() for each in (name, target.rpartition(".")[2])]
    if name[:1].isupper() or any(map(_COUNTS.search, told)) or not any(map(_PARAMETERS.search, told)):
        return None
    if isinstance(node.func, cst.Attribute) and _PARAMETERS.search(name):
        return node.func.value
    given = [arg.value for arg in node.args if not arg.star]
    return given[0] if given and isinstance(given[0], (cst.Name, cst.Attribute)) else None


def is_only_counted(index: Index, node: cst.CSTNode) -> bool:
    """Tell whether a list is asked how long it is, or its parameters for what sharding does not change."""
    above = index.parents[node]
    call = index.parents[above] if isinstance(above, cst.Arg) else None
    if isinstance(call, cst.Call) and dotted(call.func) in {"bool", "len", "type"}:
        return True
    if isinstance(above, cst.ComparisonTarget) and isinstance(above.operator, (cst.In, cst.NotIn)):
        return False  # what is new is not in it
    if isinstance(above, (cst.Comparison, cst.ComparisonTarget)):
        return True
    loop = above if isinstance(above, cst.CompFor) else None
    made = index.parents[loop] if loop is not None else None
    if loop is None or not isinstance(made, (cst.GeneratorExp, cst.ListComp, cst.SetComp)):
        return False
    names = [each for each in walk_for(made.elt, cst.Name) if dotted(loop.target) == each.value]
    reads = (index.parents[each] for each in names)
    return all(isinstance(each, cst.Attribute) and each.attr.value in _TOLD for each in reads)


def is_read_for_names(index: Index, call: cst.Call) -> bool:
    """Tell whether ``model.state_dict(keep_vars=True).items()`` is gone through for what sharding leaves.

    That is names, and what parameters say of themselves: ``{n for n, p in ... if p.requires_grad}``.
    """
    above = index.parents[call]
    items = index.parents[above] if isinstance(above, cst.Attribute) else None
    is_kept = "keep_vars" in named_arguments(call)
    if not is_kept or not isinstance(items, cst.Call) or not isinstance(above, cst.Attribute):
        return False
    loop = index.parents[items]
    if above.attr.value != "items" or not isinstance(loop, (cst.For, cst.CompFor)) or loop.iter is not items:
        return False
    names = [each.value for each in loop.target.elements] if isinstance(loop.target, cst.Tuple) else []
    if len(names) != 2:
        return False
    region = loop.body if isinstance(loop, cst.For) else index.parents[loop]
    reads = [each for each in walk_for(region, cst.Name) if each.value == text_of(names[1])]
    asked = (index.parents[each] for each in reads if each is not names[1])
    return all(isinstance(each, cst.Attribute) and each.attr.value in _TOLD for each in asked)


_TOLD = frozenset({"device", "dtype", "element_size", "is_leaf", "ndim", "numel", "requires_grad", "shape"})
