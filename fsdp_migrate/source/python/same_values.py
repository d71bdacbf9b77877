"""Expressions of a line above that may be written again below it, where they have the same value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.python.nodes import walk, walk_for


if TYPE_CHECKING:
    from fsdp_migrate.source.python.scopes import Index


# They give the same at any time of a run, once they give anything.
_CONSTANT: Final = frozenset(
    {
        "torch.cuda.device_count",
        "torch.cuda.is_available",
        "torch.distributed.get_rank",
        "torch.distributed.get_world_size",
        "torch.distributed.is_available",
    }
)
_READS: Final = (
    cst.Attribute,
    cst.BaseNumber,
    cst.BooleanOperation,
    cst.Comparison,
    cst.Name,
    cst.SimpleString,
    cst.UnaryOperation,
)


def is_same_at(index: Index, value: cst.BaseExpression, place: cst.Call) -> bool:
    """Tell whether an expression of a line above has the same value at a place.

    It stands in the same function, or in none: what a module binds once, a function sees as it is.
    """
    home = index.function(value)
    is_of_module = home is None and index.class_of(value) is None
    is_seen = (home is index.function(place) and index.order[value] < index.order[place]) or (
        is_of_module and not _is_hidden(index, value, place)
    )
    if not is_seen:
        return False
    reads = [each for each in walk(value) if isinstance(each, cst.BaseExpression)]
    called = {part for each in reads if isinstance(each, cst.Call) for part in walk(each)}
    if not all(isinstance(each, _READS) or _is_constant(index, each) for each in reads):
        return False
    if _stands_just_above(index, value, place):
        return True
    rest = [each for each in reads if each not in called]
    return all(_keeps_its_value(index, each, value) for each in rest)


def _is_hidden(index: Index, value: cst.BaseExpression, place: cst.Call) -> bool:
    """Tell whether a name in a module's expression is another one where a place stands."""
    names = (each for each in walk_for(value, cst.Name) if each in index.scopes)
    return any(index.scopes[place].find(n.value) is not index.scopes[n].find(n.value) for n in names)


def _is_constant(index: Index, node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Call) and not node.args and bool(index.qualified(node.func) & _CONSTANT)


def _keeps_its_value(index: Index, node: cst.BaseExpression, value: cst.BaseExpression) -> bool:
    """Tell whether a name is bound once, above in the same function: an attribute may be set anywhere."""
    if isinstance(node, cst.Attribute):
        return False
    if not isinstance(node, cst.Name) or node.value in {"False", "None", "True"}:
        return True
    bindings = index.bindings_of(node)
    if len(bindings) != 1:
        return False
    made = bindings[0].node
    return index.function(made) is index.function(value) and index.order[made] < index.order[value]


def _stands_just_above(index: Index, value: cst.BaseExpression, place: cst.Call) -> bool:
    """Tell whether nothing but configs is made between an expression's line and the statement of a place."""
    line, below = index.statement(value), index.statement(place)
    block = index.parents.get(line)
    if block is None or index.parents.get(below) is not block:
        return False
    body: list[cst.CSTNode] = list(block.body) if isinstance(block, (cst.IndentedBlock, cst.Module)) else []
    if line not in body or below not in body:
        return False
    return all(_makes_configs(index, each) for each in body[body.index(line) : body.index(below)])


def _makes_configs(index: Index, line: cst.CSTNode) -> bool:
    parts = line.body if isinstance(line, cst.SimpleStatementLine) else [line]
    return all(
        isinstance(part, cst.Assign)
        and isinstance(part.value, cst.Call)
        and index.fsdp1(part.value.func) in catalog.STATE_DICT_WORDS
        for part in parts
    )
