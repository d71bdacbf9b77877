"""Collectives of Accelerate and Lightning that are given DTensors, and Accelerate's norm as an array or text.

They take plain tensors, which FSDP1's parameters, gradients and norms were.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.fails_at_once import refused
from fsdp_migrate.source.framework_words import (
    is_accelerates_norm,
    is_an_accelerators_collective,
    is_fabrics_collective,
)
from fsdp_migrate.source.parameter_values import WEIGHTS, ParameterValues
from fsdp_migrate.source.python.accelerate_models import NORM
from fsdp_migrate.source.python.heirs import values_of
from fsdp_migrate.source.python.held import EACH, taken
from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.nodes import dotted, text_of
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "framework-collectives"
CODES = ("FM336", "FM423")

_MEANT = (
    "this is a DTensor now, which collectives do not take: give them .to_local(), or take .full_tensor(), "
    "which is the same on each rank."
)
_NORM = (
    "Accelerate's FSDP2 gives the norm as a DTensor, which has no {}(): take .full_tensor() of it before "
    "this, on every rank."
)
_GATHERED = (
    "Accelerate's FSDP2 gives the norm as a DTensor, and what is made of it is one, which collectives do not "
    "take: take .full_tensor() of the norm first, on every rank. It is the same on each."
)
_TEXT = (
    "Accelerate's FSDP2 gives the norm as a DTensor, which takes no format and stands in no list for "
    "torch.tensor: take .full_tensor() of it, on every rank."
)
_TAKEN_IN = (
    "Accelerate's FSDP2 gives the norm as a DTensor, which numpy does not read, and which plain tensors do "
    "not take in place: take .full_tensor() of it, on every rank."
)
_IN_PLACE = re.compile(r"^(?:add|copy|div|fill|max|min|mul|sub|lerp)_$")
_FORMAT = re.compile(r"\{[^{}]*:[^{}]+\}")
_ARRAYS = frozenset({"numpy", "tolist"})
# Of a DTensor these give one, on 2.13 and below.
_SAME = frozenset(
    {
        *("abs", "all", "any", "bfloat16", "bool", "clone", "contiguous", "cpu", "cuda", "detach", "double"),
        *("expand", "flatten", "float", "half", "int", "isfinite", "isinf", "isnan", "logical_not", "long"),
        *("max", "mean", "min", "ravel", "requires_grad_", "reshape", "sqrt", "squeeze", "sum", "to", "type"),
        *("unsqueeze", "view"),
    }
)
_MAKES = frozenset(
    {
        *("torch.as_tensor", "torch.asarray", "torch.atleast_1d", "torch.flatten", "torch.ravel"),
        *("torch.isfinite", "torch.isinf", "torch.isnan", "torch.logical_not", "torch.reshape"),
        *("torch.squeeze", "torch.tensor", "torch.unsqueeze"),
    }
)
_JOINS = frozenset({"torch.cat", "torch.hstack", "torch.stack"})
_DEEPEST = 3
_MADE_BY = (cst.Call, cst.Comparison, cst.IfExp, cst.UnaryOperation)
_COMPARES = (cst.Equal, cst.GreaterThan, cst.GreaterThanEqual, cst.LessThan, cst.LessThanEqual, cst.NotEqual)
# `hasattr(norm, "item")`, `isinstance(norm, torch.Tensor)`, `torch.is_tensor(norm)`
_ASKS_FOR_TENSORS = re.compile(
    r"hasattr\([\w.]+, ?['\"](?:item|full_tensor|to_local)['\"]\)\Z"
    r"|isinstance\([\w.]+, ?[\w.]*Tensor\)\Z|(?:torch\.)?is_tensor\([\w.]+\)\Z"
)
_MAY_FIND = re.compile(r"gather|reduce|broadcast|numpy\(|tolist\(|clip_grad_norm_")


def find(source: Source) -> Iterator[Found]:
    """Find these calls."""
    is_given_some = bool(source.links.gives or source.links.is_given)
    if _MAY_FIND.search(source.code) is None and not is_given_some:
        return
    values = ParameterValues(source)
    for call in source.calls:
        first = call.args[0].value if call.args and not call.args[0].star else None
        func = call.func
        is_collective = is_an_accelerators_collective(source, func) or is_fabrics_collective(source, func)
        if is_collective and first is not None and values.is_one(first):
            if not (source.contexts.is_summoned(call) or _is_weights(first)):
                yield Found(refused(source, call), call, _MEANT, "commented")
        elif is_collective and first is not None and _is_norm(source, first):
            yield Found(refused(source, call), call, _GATHERED, "commented")
        elif isinstance(func, cst.Attribute) and func.attr.value in _ARRAYS and _is_norm(source, func.value):
            yield Found(refused(source, call), call, _NORM.format(func.attr.value), "commented")
    yield from _of_texts(source)
    yield from _of_plain(source)


def _of_texts(source: Source) -> Iterator[Found]:
    """Find norms that are formatted, or put into a tensor."""
    for call in source.calls:
        if any(_is_norm(source, each) for each in _put_into_text(call)):
            yield Found(refused(source, call), call, _TEXT, "commented")
    for node in source.index.by_kind.get(cst.FormattedStringExpression, ()):
        part = cst.ensure_type(node, cst.FormattedStringExpression)
        if part.format_spec and part.conversion is None and _is_norm(source, part.expression):
            yield Found(refused(source, part), part, _TEXT, "commented")


def _of_plain(source: Source) -> Iterator[Found]:
    """Find norms that numpy is given, ``np.mean(norms)``, or that a plain tensor takes: ``total += norm``."""
    for call in source.calls:
        first = call.args[0].value if call.args and not call.args[0].star else None
        func = call.func
        is_put = isinstance(func, cst.Attribute) and _IN_PLACE.match(func.attr.value) is not None
        is_numpys = any(name.startswith("numpy.") for name in source.index.qualified(func))
        if first is None or not (is_put or is_numpys):
            continue
        is_alone = isinstance(func, cst.Attribute) and not _is_norm(source, func.value)
        is_listed = is_numpys and NORM in taken(EACH, source.models.kinds(first))
        if is_alone and (_is_norm(source, first) or is_listed):
            yield Found(refused(source, call), call, _TAKEN_IN, "commented")
    for node in source.index.by_kind.get(cst.AugAssign, ()):
        added = cst.ensure_type(node, cst.AugAssign)
        if _is_norm(source, added.value) and _is_plain_tensor(source, added.target):
            yield Found(refused(source, added), added, _TAKEN_IN, "commented")


def _is_plain_tensor(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether a name is given what torch makes, ``torch.zeros(1)``, and not a number."""
    values = list(values_of(source.index, node))
    made = (value.func for value in values if isinstance(value, cst.Call))
    return any(name.startswith("torch.") for func in made for name in source.index.qualified(func))


def _put_into_text(call: cst.Call) -> list[cst.BaseExpression]:
    """Return what is formatted, ``"{:.2f}".format(norm)``, or made a tensor of, ``torch.tensor([norm])``."""
    func, given = call.func, [arg.value for arg in call.args if not arg.star]
    if dotted(func) == "torch.tensor" and given and isinstance(given[0], (cst.List, cst.Tuple)):
        return [each.value for each in given[0].elements]
    if isinstance(func, cst.Name):
        return given[:1] if func.value == "format" and len(given) > 1 else []
    asked = func.value if isinstance(func, cst.Attribute) and func.attr.value == "format" else None
    text = asked.value if isinstance(asked, cst.SimpleString) else ""
    # Which part is whose is not looked at where only some have a format.
    return given if text.count("{") == len(_FORMAT.findall(text)) > 0 else []


def _is_weights(node: cst.BaseExpression) -> bool:
    """Tell whether it is ``head.weight.grad``, of which another rule says so wherever it is used."""
    held = node.value if isinstance(node, cst.Attribute) and node.attr.value in {"data", "grad"} else None
    return isinstance(held, cst.Attribute) and held.attr.value in WEIGHTS


def _is_norm(source: Source, node: cst.BaseExpression, depth: int = 0) -> bool:
    """Tell whether it is what ``accelerator.clip_grad_norm_`` gave, or a tensor that is made of it."""
    while (of := _made_of(source, node)) is not None:
        node = of
    if isinstance(node, cst.Call) and source.index.qualified(node.func) & _JOINS and node.args:
        first = node.args[0].value
        listed = first.elements if isinstance(first, (cst.List, cst.Tuple)) else ()
        is_listed = any(_is_norm(source, each.value, depth) for each in listed)
        return is_listed or NORM in taken(EACH, source.models.kinds(first))
    if _is_made_a_number(source, node):
        return False
    if NORM in source.models.kinds(node) or is_accelerates_norm(source, node):
        return True
    is_name = isinstance(node, cst.Name) and node in source.index.scopes
    values = list(values_of(source.index, node)) if is_name and depth < _DEEPEST else []
    # `row = norm.reshape(-1)`; by another value of a name it may be a number.
    return bool(values) and all(
        isinstance(each, _MADE_BY) and _is_norm(source, each, depth + 1) for each in values
    )


def _made_of(source: Source, node: cst.BaseExpression) -> cst.BaseExpression | None:
    """Return what a tensor is made of, whose kind it has: ``torch.as_tensor(norm).reshape(-1)``."""
    if isinstance(node, cst.Attribute):
        return node.value if node.attr.value == "data" else None
    if isinstance(node, cst.UnaryOperation):
        return None if isinstance(node.operator, cst.Not) else node.expression
    if isinstance(node, cst.Comparison):
        return node.left if all(isinstance(e.operator, _COMPARES) for e in node.comparisons) else None
    if isinstance(node, cst.IfExp):  # `norm.float() if torch.is_tensor(norm) else torch.tensor(norm)`
        is_asked = _ASKS_FOR_TENSORS.match(text_of(node.test)) is not None
        return node.body if is_asked and isinstance(node.body, cst.Call) else None
    if not isinstance(node, cst.Call):
        return None
    if source.index.qualified(node.func) & _MAKES and node.args and not node.args[0].star:
        return node.args[0].value
    is_method = isinstance(node.func, cst.Attribute) and node.func.attr.value in _SAME
    return node.func.value if is_method and isinstance(node.func, cst.Attribute) else None


def _is_bound_to_a_number(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether it was given a number: ``norm = norm.item()``, ``self.norm = float(self.norm)``."""
    if isinstance(node, cst.Name) and node in source.index.scopes:
        return _is_number(last_value(source.index, node))
    text, index = text_of(node), source.index
    places = index.places_set(text) if isinstance(node, cst.Attribute) else ()
    given = [(each, above.value) for each in places if isinstance(above := index.parents[each], cst.Assign)]
    numbers = [each for each, value in given if _is_number(value)]
    norms = [
        each
        for each, value in given
        if is_accelerates_norm(source, value) or NORM in source.models.kinds(value)
    ]
    # Each is followed by its number in the same block, or in one around.
    return bool(numbers and norms) and all(any(_follows(source, n, norm) for n in numbers) for norm in norms)


def _follows(source: Source, number: cst.CSTNode, norm: cst.CSTNode) -> bool:
    above = source.index.ancestors(number)
    branches = {each for each in above if isinstance(each, (cst.Else, cst.If, cst.Try))}
    is_same = source.index.function(number) is source.index.function(norm)
    is_below = source.index.order[norm] < source.index.order[number]
    return is_same and is_below and branches <= {*source.index.ancestors(norm)}


def _is_number(value: cst.BaseExpression | None) -> bool:
    """Tell whether it is what ``float(x)`` or ``x.item()`` gives."""
    if not isinstance(value, cst.Call):
        return False
    func = value.func
    return dotted(func) == "float" or (isinstance(func, cst.Attribute) and func.attr.value == "item")


def _is_made_a_number(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether a test for tensors has made a number of it: ``if torch.is_tensor(n): n = n.item()``."""
    if isinstance(node, cst.IfExp):
        return _ASKS_FOR_TENSORS.match(text_of(node.test)) is not None
    if _is_bound_to_a_number(source, node):
        return True
    if not isinstance(node, cst.Name) or node not in source.index.scopes:
        return False
    around, order = {*source.index.ancestors(node)}, source.index.order
    for each in source.index.bindings_of(node):
        is_kept = isinstance(each.value, cst.IfExp) and _made_of(source, each.value) is not None
        is_kept = is_kept and _is_norm(source, cst.ensure_type(each.value, cst.IfExp).body)
        tests = [each.value.test] if isinstance(each.value, cst.IfExp) and not is_kept else []
        branches = [above for above in source.index.ancestors(each.node) if isinstance(above, cst.If)]
        tests += [each.test for each in branches if each not in around and order[each] < order[node]]
        if any(_ASKS_FOR_TENSORS.match(text_of(test)) for test in tests):
            return True
    return False
