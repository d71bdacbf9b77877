"""Whether what ranks reduce is their average: of equal values that is the value."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.nodes import text_of, walk_for


if TYPE_CHECKING:
    from fsdp_migrate.source.python.scopes import Index


_NO_SUM = re.compile(r"\b(AVG|MAX|MIN)$")
_RANKS = re.compile(r"world_?size|num_(gpus|ranks)|nprocs", re.IGNORECASE)


def is_averaged(index: Index, call: cst.Call) -> bool:
    """Tell whether ``all_reduce(x)`` gives an average: by its ``op``, or by a division below it."""
    named = [arg.value for arg in call.args if arg.keyword is not None and arg.keyword.value == "op"]
    placed = [arg.value for arg in call.args[1:2] if arg.keyword is None]
    if any(_NO_SUM.search(text_of(each)) for each in (*named, *placed)):
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
