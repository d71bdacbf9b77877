"""The name that Lightning's strategy is kept under: what is set of it, and what takes its place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.findings import named
from fsdp_migrate.source.python.nodes import walk


if TYPE_CHECKING:
    from collections.abc import Iterable

    from fsdp_migrate.source.python.text import Source


_TIMEOUT = "_timeout"
_TIMEOUT_SAID = "`_timeout` is set below this: ModelParallelStrategy takes `timeout=`"
_SETTINGS = "below this {} of this strategy is set, which ModelParallelStrategy may not have"


def is_replaced(source: Source, call: cst.Call) -> bool:
    """Tell whether a statement below puts another value into the name of a strategy, before any reads it."""
    target = name_of(source, call)
    line = source.index.statement(call)
    block = source.index.parents[line]
    if target is None or not isinstance(block, (cst.IndentedBlock, cst.Module)):
        return False
    order, place = source.index.order, source.index.order[line]
    below = [
        each.node
        for each in source.index.bindings_of(target)
        if order[each.node] > place
        and source.index.statement(each.node) is not line
        and source.index.parents[source.index.statement(each.node)] is block
    ]
    if not below:
        return False
    # Its value, which may read the name, is a part of this statement.
    last = source.index.statement(min(below, key=lambda each: order[each]))
    inside = set(walk(last))
    return isinstance(last, cst.SimpleStatementLine) and all(
        order[each] < place or (order[each] > order[last] and each not in inside)
        for each in source.readers(target)
    )


def name_of(source: Source, call: cst.Call) -> cst.Name | None:
    """Return the name that is given a call's value, and nothing else with it."""
    above = source.index.parents[call]
    target = above.targets[0].target if isinstance(above, cst.Assign) and len(above.targets) == 1 else None
    return target if isinstance(target, cst.Name) else None


def settings_of(source: Source, call: cst.Call) -> list[cst.Attribute]:
    """Return the attributes of a strategy that are set behind it: ``strategy._timeout = ...``."""
    target = name_of(source, call)
    if target is None:
        return []
    of_names = (source.index.parents[each] for each in source.readers(target))
    return [
        each
        for each in of_names
        if isinstance(each, cst.Attribute) and isinstance(source.index.parents[each], cst.AssignTarget)
    ]


def said_of_settings(settings: Iterable[cst.Attribute]) -> list[str]:
    """Return what there is to say of attributes of FSDP1's strategy that are set: it has other ones."""
    names = dict.fromkeys(each.attr.value for each in settings)
    own = [name for name in names if name != _TIMEOUT]
    said = [_TIMEOUT_SAID] if _TIMEOUT in names else []
    return said + ([_SETTINGS.format(named(own, 3))] if own else [])
