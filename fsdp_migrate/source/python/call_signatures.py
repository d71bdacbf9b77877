"""Calls by what they call, and by the constants that they are given."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.nodes import dotted, named_arguments, text_of
from fsdp_migrate.source.python.switched_off import is_switched_off


if TYPE_CHECKING:
    from collections.abc import Collection


Signature = tuple[str, tuple[tuple[str, str], ...]]
_CONSTANTS = frozenset({"True", "False", "None"})


def is_told_off(call: cst.Call, plain: Collection[Signature]) -> bool:
    """Tell whether a call says that its model is not sharded, by a switch or as one of those of a file."""
    given = ((name, text_of(value)) for name, value in named_arguments(call).items())
    return is_switched_off(given) or (bool(plain) and signature(call) in plain)


def signature(call: cst.Call) -> Signature:
    """Return what is called, and the names and values of its arguments; ``?`` for what is no constant."""
    given = ((each.keyword.value if each.keyword else each.star, _constant(each.value)) for each in call.args)
    return dotted(call.func) or "?", tuple(given)


def signature_of(call: ast.Call) -> Signature:
    """Return the same of a node of Python's own parser."""
    placed = [("*" if isinstance(each, ast.Starred) else "", _value(each)) for each in call.args]
    named = [("**" if each.arg is None else each.arg, _value(each.value)) for each in call.keywords]
    text = ast.unparse(call.func)
    return text if all(part.isidentifier() for part in text.split(".")) else "?", (*placed, *named)


def _constant(node: cst.BaseExpression) -> str:
    if isinstance(node, (cst.Integer, cst.Float, cst.SimpleString)):
        return repr(node.evaluated_value)
    return text_of(node) if text_of(node) in _CONSTANTS else "?"


def _value(node: ast.expr) -> str:
    is_one = isinstance(node, ast.Constant) and isinstance(node.value, (bool, float, int, str, type(None)))
    return repr(node.value) if is_one and isinstance(node, ast.Constant) else "?"
