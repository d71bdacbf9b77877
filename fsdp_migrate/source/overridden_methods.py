"""Which methods of a class one below it has of its own, without asking for the other."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from fsdp_migrate.source.project import dotted


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.project import Definition


def overridden(base: Definition, below: Definition) -> set[str]:
    """Return the methods of a class that one below it has its own of, and does not ask for the other."""
    found: set[str] = set()
    for name in base.module.definitions:
        owner, _, method = name.rpartition(".")
        own = below.module.definitions.get(f"{below.name}.{method}") if owner == base.name else None
        if own is not None and not _asks_above(own.node):
            found.add(name)
    return found


def _asks_above(method: ast.AST) -> bool:
    """Tell whether a method asks the class above with FSDP1's model.

    Not where the other branch is FSDP1's, by a method that no other model has.
    """
    asks = {each for each in _calls_in(method) if dotted(each) == "super()"}
    for choice in (each for each in ast.walk(method) if isinstance(each, ast.If)):
        for branch, other in ((choice.body, choice.orelse), (choice.orelse, choice.body)):
            if any(_clips_itself(call) for each in other for call in _calls_in(each)):
                asks -= {call for each in branch for call in _calls_in(each)}
    return bool(asks)


def _clips_itself(call: ast.expr) -> bool:
    """Tell whether a call is ``self.model.clip_grad_norm_(1.0)``."""
    func = call.func if isinstance(call, ast.Call) else None
    if not isinstance(call, ast.Call) or not isinstance(func, ast.Attribute) or not call.args:
        return False
    is_its = func.attr == "clip_grad_norm_" and (dotted(func) or "").startswith("self.")
    return is_its and "param" not in ast.unparse(call.args[0])


def _calls_in(node: ast.AST) -> Iterator[ast.expr]:
    return (each for each in ast.walk(node) if isinstance(each, ast.Call))
