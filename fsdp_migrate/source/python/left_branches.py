"""Branches of a source's functions that no call with a sharded model comes to, as its project shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdp_migrate.source.python.known_constants import are_never
from fsdp_migrate.source.python.nodes import as_ast, dotted


if TYPE_CHECKING:
    import libcst as cst

    from fsdp_migrate.source.python.guards import Guards
    from fsdp_migrate.source.python.links import Links


def is_left_out(guards: Guards, links: Links, node: cst.CSTNode) -> bool:
    """Tell whether a parameter, or an attribute of one, stands where calls that give a model never come."""
    function = guards.index.function(node) if links.constants_given else None
    if function is None:
        return False
    name = (dotted(node) or "").partition(".")[0]
    calls = links.constants_given.get((guards.index.path_of(function), name), ())
    facts = [(as_ast(test), truth) for test, truth in guards.facts(node)] if calls else []
    return bool(facts) and all(are_never(known, facts) for known in calls)
