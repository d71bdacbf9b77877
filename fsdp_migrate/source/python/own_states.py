"""Optimizers of a project whose ``state_dict`` holds more than torch's functions for states take.

Those read ``state`` and ``param_groups`` of it, and leave out the rest without an error.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.nodes import last_name
from fsdp_migrate.source.python.own_names import values_bound


if TYPE_CHECKING:
    from fsdp_migrate.source.python.text import Source


_ADDS = (
    " `{}` has a state_dict of its own: torch's functions take `state` and `param_groups` of it, so save and "
    "load by itself what it adds."
)
_MAY_ADD = (
    " Where this is `{}`, whose state_dict is its own, torch's functions take `state` and `param_groups` of "
    "it: save and load by itself what it adds."
)


def adds_to_its_state(owner: ast.AST) -> bool:
    r"""Tell whether a class has a ``state_dict`` that does more than to ask another for its own.

    Example:
        >>> text = "class A:\n def state_dict(self): return {}"
        >>> asked = ("self.inner.state_dict()", "{**self.inner.state_dict(), 'codes': self.codes}")
        >>> [adds_to_its_state(ast.parse(text.format(each)).body[0]) for each in asked]
        [False, True]
    """
    methods = owner.body if isinstance(owner, ast.ClassDef) else []
    return any(
        isinstance(each, ast.FunctionDef) and each.name == "state_dict" and not _asks_another(each)
        for each in methods
    )


def _asks_another(method: ast.FunctionDef) -> bool:
    done = [each for each in method.body if not _is_docstring(each)]
    value = done[0].value if len(done) == 1 and isinstance(done[0], ast.Return) else None
    func = value.func if isinstance(value, ast.Call) else None
    return isinstance(func, ast.Attribute) and func.attr == "state_dict"


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def said_of_own_state(source: Source, optimizer: cst.BaseExpression) -> str:
    """Return what is to be said of the state of an optimizer that may be one of these, or nothing."""
    owners = source.links.own_states
    made = _made_of(source, optimizer) if owners else set()
    known = sorted(made & owners)
    if made:
        return _ADDS.format(known[0]) if known else ""
    return _MAY_ADD.format(min(owners)) if owners else ""


def _made_of(source: Source, optimizer: cst.BaseExpression) -> set[str]:
    """Return the classes of which this source makes an optimizer, by their names; none if others give it."""
    values = values_bound(source, optimizer)
    names = {last_name(each.func) for each in values if isinstance(each, cst.Call)}
    return {name for name in names if name[:1].isupper()}
