"""Branches of a source's functions that no call with a sharded model comes to, as its project shows."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from fsdp_migrate.source.python.known_constants import is_never
from fsdp_migrate.source.python.nodes import code, dotted


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
    facts = [(_parsed(test), truth) for test, truth in guards.facts(node)] if calls else []
    return bool(facts) and all(
        any(test is not None and is_never(known, test, truth=truth) for test, truth in facts)
        for known in calls
    )


def _parsed(test: cst.BaseExpression) -> ast.expr | None:
    try:
        return ast.parse(f"({code(test)})", mode="eval").body
    except SyntaxError:
        return None
