"""Branches of a source's functions that no call with a sharded model comes to, as its project shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.asked_classes import is_fsdp1_among
from fsdp_migrate.source.python.known_constants import are_never
from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.nodes import as_ast, dotted, placed_parameters, text_of, walk_for
from fsdp_migrate.source.python.same_objects import other_names


if TYPE_CHECKING:
    from fsdp_migrate.source.python.guards import Guards
    from fsdp_migrate.source.python.links import Links


def is_left_out(guards: Guards, links: Links, node: cst.CSTNode) -> bool:
    """Tell whether a parameter, or an attribute of one, stands where calls that give a model never come."""
    if _is_of_another_model(guards, node) or _is_plain_by_another_name(guards, node):
        return True
    function = guards.index.function(node) if links.constants_given else None
    if function is None:
        return False
    name = (dotted(node) or "").partition(".")[0]
    calls = links.constants_given.get((guards.index.path_of(function), name), ())
    facts = [(as_ast(test), truth) for test, truth in guards.facts(node)] if calls else []
    return bool(facts) and all(are_never(known, facts) for known in calls)


def _is_of_another_model(guards: Guards, node: cst.CSTNode) -> bool:
    """Tell whether it is taken by a function out of a model that is none of FSDP1's: ``unwrap(model)``."""
    held = (
        last_value(guards.index, node) if isinstance(node, cst.Name) and node in guards.index.scopes else node
    )
    if not isinstance(held, cst.Call) or not held.args or not isinstance(held.args[0].value, cst.Name):
        return False
    made = list(guards.functions(held.func))
    is_its = bool(made) and all(map(_gives_its_own, made))
    text = text_of(held.args[0].value)
    return is_its and guards.is_excluded(node, text, is_fsdp1_among(guards.index))


def _is_plain_by_another_name(guards: Guards, node: cst.CSTNode) -> bool:
    """Tell whether the same object was found to be none of FSDP1's: ``self.net`` where ``net`` was asked."""
    is_fsdp1 = is_fsdp1_among(guards.index)
    asked = other_names(guards.index, node) if next(guards.facts(node), None) is not None else ()
    return any(guards.is_excluded(node, text, is_fsdp1) for text in asked)


def _gives_its_own(function: cst.FunctionDef) -> bool:
    """Tell whether a function gives back its first argument, or something in it, and nothing else."""
    params = [
        each.name.value for each in placed_parameters(function) if each.name.value not in {"self", "cls"}
    ]
    given = [each.value for each in walk_for(function.body, cst.Return)]
    bound = [
        each.value
        for each in walk_for(function.body, cst.Assign)
        if any(text_of(to.target) in params[:1] for to in each.targets)
    ]
    return bool(params and given) and all(_is_within(each, params[0]) for each in (*given, *bound))


def _is_within(value: cst.BaseExpression | None, name: str) -> bool:
    if isinstance(value, cst.IfExp):
        return _is_within(value.body, name) and _is_within(value.orelse, name)
    if isinstance(value, cst.Call) and dotted(value.func) == "getattr" and value.args:
        others = [each.value for each in value.args[2:]]
        return _is_within(value.args[0].value, name) and all(_is_within(each, name) for each in others)
    return value is not None and (dotted(value) or "").split(".")[0] == name
