"""Functions without a name that a source calls by one: ``norm = lambda m: ...``, ``STEPS["a"](model)``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.python.nodes import kept, placed_parameters


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.scopes import Index


_DEEPEST: Final = 3


def given_to_lambdas(index: Index, call: cst.Call) -> Iterator[tuple[cst.Lambda, str, cst.BaseExpression]]:
    """Yield what a call gives to the parameters of such functions."""
    for function in _called_here(index, call.func):
        names = [each.name.value for each in placed_parameters(function)]
        for name, arg in zip(names, call.args, strict=False):
            if arg.star or arg.keyword is not None:
                break
            yield function, name, arg.value
        for arg in call.args:
            if arg.keyword is not None and arg.keyword.value in names:
                yield function, arg.keyword.value, arg.value


@kept
def _called_here(index: Index, func: cst.BaseExpression) -> tuple[cst.Lambda, ...]:
    return tuple(_called(index, func))


def _called(index: Index, func: cst.BaseExpression, depth: int = 0) -> Iterator[cst.Lambda]:
    if isinstance(func, cst.Lambda):
        yield func
    if depth > _DEEPEST:
        return
    if isinstance(func, cst.IfExp):
        for side in (func.body, func.orelse):
            yield from _called(index, side, depth + 1)
    elif isinstance(func, cst.Name) and func in index.scopes:
        for binding in index.scopes[func].lookup(func.value):
            if isinstance(binding.value, (cst.IfExp, cst.Lambda, cst.Name)) and binding.index is None:
                yield from _called(index, binding.value, depth + 1)
    elif isinstance(func, cst.Subscript):
        yield from _held(index, func.value)
    elif (
        isinstance(func, cst.Call) and isinstance(func.func, cst.Attribute) and func.func.attr.value == "get"
    ):
        yield from _held(index, func.func.value)


def _held(index: Index, container: cst.BaseExpression) -> Iterator[cst.Lambda]:
    """Yield the functions that a dict or a list holds which is written out."""
    values: list[cst.BaseExpression | None] = [container]
    if isinstance(container, cst.Name) and container in index.scopes:
        values += [each.value for each in index.scopes[container].lookup(container.value)]
    for value in values:
        for each in value.elements if isinstance(value, (cst.Dict, cst.List, cst.Tuple)) else ():
            if isinstance(each.value, cst.Lambda):
                yield each.value
