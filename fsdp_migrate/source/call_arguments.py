"""What a call gives to a parameter of a project's function, or the default that it leaves in place."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from fsdp_migrate.source.project import dotted


if TYPE_CHECKING:
    from fsdp_migrate.source.project import Definition


def given_by(function: Definition, name: str, call: ast.Call) -> ast.expr | None:
    """Return what a call gives to a parameter, or its default; None where that is not seen."""
    if isinstance(function.node, ast.ClassDef):
        return None
    args = function.node.args
    order = [*args.posonlyargs, *args.args]
    named = {each.arg: each.value for each in call.keywords}
    if name in named:
        return named[name]
    if any(isinstance(each, ast.Starred) for each in call.args):
        return None
    is_static = any(dotted(each) == "staticmethod" for each in function.node.decorator_list)
    is_method = function.owner is not None and not is_static
    names = [each.arg for each in order][1 if is_method else 0 :]
    if name in names and names.index(name) < len(call.args):
        return call.args[names.index(name)]
    if None in named:  # `**kwargs`
        return None
    defaults = dict(zip([each.arg for each in order][::-1], args.defaults[::-1], strict=False))
    defaults.update(
        {k.arg: v for k, v in zip(args.kwonlyargs, args.kw_defaults, strict=True) if v is not None}
    )
    return defaults.get(name)
