"""What functions without a name are given: ``filter(lambda p: p.ndim > 1, params)``, ``f = lambda p: p``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.python.nodes import argument_of, dotted, placed_parameters


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.scopes import Index


_GO_THROUGH: Final = frozenset({"filter", "map", "max", "min", "sorted"})


def given_to_nameless(index: Index, name: cst.Name) -> Iterator[tuple[cst.BaseExpression, bool]]:
    """Yield what the parameter of a lambda is given, each with whether it is one of those in it.

    It is what ``map`` and the like go through, or the argument of a call of the name that the lambda has.
    """
    function = next((each for each in index.ancestors(name) if isinstance(each, cst.Lambda)), None)
    names = [each.name.value for each in placed_parameters(function)] if function is not None else []
    if function is None or name.value not in names:
        return
    place = names.index(name.value)
    for used in (function, *_named(index, function)):
        above = index.parents[used]
        call = index.parents[above] if isinstance(above, cst.Arg) else above
        if isinstance(call, cst.Call) and call.func is used:
            given = _given(call, place, name.value)
            yield from ((given, False),) if given is not None else ()
        elif isinstance(call, cst.Call) and dotted(call.func) in _GO_THROUGH:
            yield from ((arg.value, True) for arg in call.args[:2] if arg is not above and not arg.star)


def _named(index: Index, function: cst.Lambda) -> Iterator[cst.Name]:
    """Yield where a lambda is named: the names that hold nothing else."""
    assign = index.parents[function]
    targets = [each.target for each in assign.targets] if isinstance(assign, cst.Assign) else []
    held = {each.value for each in targets if isinstance(each, cst.Name)}
    for each in index.by_kind.get(cst.Name, ()) if held else ():
        name = cst.ensure_type(each, cst.Name)
        if name.value in held and name in index.scopes:
            bindings = index.scopes[name].lookup(name.value)
            if [binding.value for binding in bindings] == [function]:
                yield name


def _given(call: cst.Call, place: int, name: str) -> cst.BaseExpression | None:
    """Return what a call gives to a parameter, by its name or its place."""
    is_hidden = any(arg.star for arg in call.args)
    return None if is_hidden else argument_of(call, place, {name})
