"""Flat vectors that are cut by the sizes of parameters: ``p.grad = vec[i : i + p.numel()].view_as(p)``.

FSDP1 counted one rank's part, of which such a vector was made; FSDP2 counts the whole parameter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.containers import is_slice
from fsdp_migrate.source.python.nodes import dotted, last_name, text_of, walk_for


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.parameter_values import ParameterValues
    from fsdp_migrate.source.python.scopes import Index
    from fsdp_migrate.source.python.text import Source


CUT = (
    "the size and the shape are those of the whole parameter now, and a vector of this rank's parts is "
    "shorter: take both of p.to_local(). A DTensor takes no plain gradient: set p.grad = torch.zeros_like(p) "
    "and p.grad.to_local().copy_(part); into values p.data.to_local().copy_(part)."
)
_SIZES = frozenset({"nelement", "numel"})
_PRODUCTS = frozenset({"math.prod", "numpy.prod", "torch.prod"})
_SHAPES = frozenset({"shape", "size"})
_SPLITS = frozenset({"split", "split_with_sizes", "tensor_split"})
_KNOWS = frozenset({"distribute_tensor", "from_local", "full_tensor", "to_local"})


def cut_by_sizes(values: ParameterValues) -> Iterator[cst.Call]:
    """Yield where a size is taken of a sharded model's parameter by which another tensor is cut.

    Of several in one loop it is the first.
    """
    source, done = values.source, set[cst.CSTNode]()
    sized = [(call, each) for call in source.calls if (each := _sized(source.index, call)) is not None]
    places = _places(source) if sized else {}
    for call, parameter in sized if places else ():
        if not _cuts(values, places, call) or not values.is_one(parameter):
            continue
        loops = (each for each in source.index.ancestors(call) if isinstance(each, cst.For))
        around = next(loops, call)
        if around not in done and not source.contexts.is_summoned(call) and not _knows(source, call):
            yield call
        done.add(around)


def _knows(source: Source, call: cst.Call) -> bool:
    """Tell whether the function around takes parts of DTensors, or makes one of parts."""
    function = source.index.function(call) or source.module
    words = {each.attr.value for each in walk_for(function, cst.Attribute)}
    return not _KNOWS.isdisjoint(words | {each.value for each in walk_for(function, cst.Name)})


def _places(source: Source) -> dict[str, list[tuple[cst.CSTNode, cst.BaseExpression]]]:
    """Return by its text what stands in a bound of a slice, or in the sizes of a split, and what is cut."""
    found: dict[str, list[tuple[cst.CSTNode, cst.BaseExpression]]] = {}
    for node in source.index.by_kind.get(cst.Subscript, ()):
        subscript = cst.ensure_type(node, cst.Subscript)
        for bound in subscript.slice if is_slice(subscript) else ():
            _note(found, bound, subscript.value)
    for call in source.calls:
        if last_name(call.func) in _SPLITS and call.args:
            is_method = isinstance(call.func, cst.Attribute) and not source.index.qualified(call.func)
            whole = cst.ensure_type(call.func, cst.Attribute).value if is_method else call.args[0].value
            for arg in call.args:
                _note(found, arg, whole)
    return found


def _note(
    found: dict[str, list[tuple[cst.CSTNode, cst.BaseExpression]]],
    around: cst.CSTNode,
    whole: cst.BaseExpression,
) -> None:
    for kind in (cst.Attribute, cst.Call, cst.Name):
        for node in walk_for(around, kind):
            found.setdefault(text_of(node), []).append((node, whole))


def _sized(index: Index, call: cst.Call) -> cst.BaseExpression | None:
    """Return what a call takes the size of: ``p.numel()``, ``p.shape.numel()``, ``math.prod(p.shape)``."""
    func = call.func
    if isinstance(func, cst.Attribute) and func.attr.value in _SIZES and not call.args:
        return _shaped(func.value) or func.value
    return _shaped(call.args[0].value) if call.args and index.qualified(func) & _PRODUCTS else None


def _shaped(node: cst.BaseExpression) -> cst.BaseExpression | None:
    """Return what a shape is of: ``p.shape``, ``p.size()``."""
    node = node.func if isinstance(node, cst.Call) and not node.args else node
    return node.value if isinstance(node, cst.Attribute) and node.attr.value in _SHAPES else None


def _cuts(
    values: ParameterValues, places: dict[str, list[tuple[cst.CSTNode, cst.BaseExpression]]], call: cst.Call
) -> bool:
    """Tell whether a size is, or goes by a name into, what another tensor than a parameter is cut by."""
    index = values.source.index
    for text in (text_of(call), *_names_of(index.statement(call))):
        around = index.class_of if text.startswith("self.") else index.function
        for node, whole in places.get(text, ()):
            is_its = node is call if text == text_of(call) else around(node) is around(call)
            if is_its and not values.is_one(whole):
                return True
    return False


def _names_of(line: cst.CSTNode) -> set[str]:
    """Return the names that a line gives a size, or a list of sizes: ``size = p.numel()``."""
    small = line.body[0] if isinstance(line, cst.SimpleStatementLine) else line
    if isinstance(small, cst.Assign):
        return {dotted(each.target) or "" for each in small.targets} - {""}
    return {dotted(small.target) or ""} - {""} if isinstance(small, (cst.AnnAssign, cst.AugAssign)) else set()
