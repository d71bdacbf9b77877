"""Functions that only hand back the model that they are given: unwrapped, or where it is of a class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.python.asked_classes import is_fsdp1_among
from fsdp_migrate.source.python.call_signatures import is_told_off
from fsdp_migrate.source.python.made_sure import asks_class
from fsdp_migrate.source.python.nodes import dotted, placed_parameters, text_of, walk_for


if TYPE_CHECKING:
    from collections.abc import Collection

    from fsdp_migrate.source.python.call_signatures import Signature
    from fsdp_migrate.source.python.guards import Guards


_DEEPEST: Final = 3
_ASK: Final = frozenset({"getattr", "hasattr", "isinstance", "type"})


def check_or_none(function: cst.FunctionDef) -> cst.Call | None:
    """Return the check of a function that gives its model where that holds, and None where it does not.

    ``if isinstance(m, FSDP): return m``, and then ``return None``, or nothing more.
    """
    lines = [each for each in function.body.body if isinstance(each, (cst.If, cst.SimpleStatementLine))]
    choices = [each for each in lines if isinstance(each, cst.If)]
    given = [each.value for each in walk_for(function.body, cst.Return)]
    if len(choices) != 1 or choices[0].orelse is not None or len(lines) != len(function.body.body):
        return None
    test, values = choices[0].test, [each for each in given if each is not None and text_of(each) != "None"]
    if not isinstance(test, cst.Call) or not asks_class(test) or len(values) != 1:
        return None
    if any(each.attr.value in catalog.WRAPPED for each in walk_for(function.body, cst.Attribute)):
        return None  # what it asks may be the model within FSDP1's wrapper, which is none
    is_its = text_of(values[0]) == text_of(test.args[0].value)
    is_below = any(each is values[0] for each in walk_for(choices[0].body, type(values[0])))
    return test if is_its and is_below and isinstance(values[0], cst.Name) else None


def gives_plain(guards: Guards, call: cst.Call, plain: Collection[Signature]) -> bool:
    """Tell whether a call gives no sharded model: it says so by a switch, or hands a plain one back.

    ``plain``: calls of the file that are known to give none.
    """
    return is_told_off(call, plain) or is_handed_back_plain(guards, call)


def is_handed_back_plain(guards: Guards, call: cst.Call) -> bool:
    """Tell whether a call gives back, unwrapped perhaps, a model that is found to be none of FSDP1's there.

    ``inner = unwrap(model)`` below ``else:`` of ``isinstance(model, FSDP)``; what may wrap it is none.
    """
    functions = guards.functions(call.func)
    given = call.args[0].value if call.args and not call.args[0].star else None
    if given is None or not functions or not all(_only_hands_back(guards, each, 0) for each in functions):
        return False
    return guards.is_excluded(given, text_of(given), is_fsdp1_among(guards.index))


def _only_hands_back(guards: Guards, function: cst.FunctionDef, depth: int) -> bool:
    own = {each.name.value for each in placed_parameters(function)} - {"cls", "self"}
    given = [each.value for each in walk_for(function.body, cst.Return)]
    if not all(each is not None and _root(each) in own for each in given) or not given:
        return False
    for call in walk_for(function.body, cst.Call):
        if dotted(call.func) in _ASK:
            continue
        inner = guards.functions(call.func) if depth < _DEEPEST else ()
        if not inner or not all(_only_hands_back(guards, each, depth + 1) for each in inner):
            return False
    return True


def _root(node: cst.BaseExpression) -> str:
    """Return the name that an expression is taken from: ``m`` of ``m.module``, ``getattr(m, "a", m)``."""
    while not isinstance(node, cst.Name):
        if isinstance(node, cst.Call) and node.args:
            node = node.args[0].value
        elif isinstance(node, cst.Attribute):
            node = node.value
        else:
            return ""
    return node.value
