"""What ranks reduce: an average, which of equal values is the value, and over which of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.nodes import argument_of, text_of, walk_for


if TYPE_CHECKING:
    from fsdp_migrate.source.python.scopes import Index


_NO_SUM = re.compile(r"\b(AVG|MAX|MIN)$")
_OF_ALL = re.compile(r"\b(BAND|BOR|MAX|MIN|PRODUCT)$")
_OF_PARTS = re.compile(
    r"(?i)(?<![a-z0-9])(tp|mp|pp|etp|(tensor|model|pipeline|expert)(_?model)?_?(parallel|mp|tp))(?=_|$|\b)"
)
"""The groups of ranks that hold other parts of a model, and no shards of the same ones."""
_RANKS = re.compile(r"world_?size|num_(gpus|ranks)|nprocs", re.IGNORECASE)


def is_averaged(index: Index, call: cst.Call) -> bool:
    """Tell whether ``all_reduce(x)`` gives an average: by its ``op``, or by a division below it."""
    if _NO_SUM.search(_operation(call)):
        return True
    text, around = text_of(call.args[0].value), index.function(call) or index.module
    below = index.order[call]
    divisions = [
        *((each.operator, each.target, each.value, each) for each in walk_for(around, cst.AugAssign)),
        *((each.operator, each.left, each.right, each) for each in walk_for(around, cst.BinaryOperation)),
    ]
    return any(
        isinstance(operator, (cst.Divide, cst.DivideAssign))
        and index.order[node] > below
        and text_of(left) == text
        and _RANKS.search(text_of(right)) is not None
        for operator, left, right, node in divisions
    )


def takes_one(call: cst.Call) -> bool:
    """Tell whether ``all_reduce(x)`` gives the largest or the smallest, or whether all agree: no sum."""
    return _OF_ALL.search(_operation(call)) is not None


def is_over_parts(call: cst.Call) -> bool:
    """Tell whether ranks reduce over a group of another parallelism: ``all_reduce(x, group=tp)``."""
    group = argument_of(call, 2, {"group"})
    return group is not None and _OF_PARTS.search(text_of(group)) is not None


def _operation(call: cst.Call) -> str:
    given = argument_of(call, 1, {"op"})
    return text_of(given) if given is not None else ""
