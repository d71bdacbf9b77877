"""Functions that wrap parts of what they are given, in place: ``wrap_blocks(net)`` of one source."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.nodes import argument_of, parameters_of, placed_parameters, text_of, walk_for


if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from fsdp_migrate.source.python.model_kinds import Key
    from fsdp_migrate.source.python.scopes import Index

    Makes = Callable[[cst.CSTNode], bool]


def wrapped_parameters(
    index: Index, function: cst.FunctionDef, wholes: Collection[Key], made: Mapping[Key, list[cst.CSTNode]]
) -> list[str]:
    """Return the parameters of a function of whose modules it wraps parts, before it binds them anew.

    Args:
        index: The source.
        function: The function.
        wholes: The names of models that have wrapped parts.
        made: Where names are made models.
    """
    scope, order = index.scopes[function.params], index.order
    found: list[str] = []
    for param in parameters_of(function):
        name = param.name.value
        if (function, name) not in wholes or name in {"cls", "self"}:
            continue
        first = min((order[each] for each in made.get((function, name), ())), default=0)
        if all(each.kind == "param" or order[each.node] > first for each in scope.lookup(name)):
            found.append(name)
    return found


def given_for(call: cst.Call, function: cst.FunctionDef, name: str) -> cst.BaseExpression | None:
    """Return what a call gives for a parameter of a function."""
    params = [each.name.value for each in placed_parameters(function)]
    is_method = isinstance(call.func, cst.Attribute) or function.name.value == "__init__"
    params = params[1:] if is_method and params[:1] in (["self"], ["cls"]) else params
    place = params.index(name) if name in params else len(call.args)
    return argument_of(call, place, {name})


def is_replaced(
    index: Index, call: cst.Call, given: cst.BaseExpression, function: cst.FunctionDef, makes: Makes
) -> bool:
    """Tell whether a call's result takes the place of the model that it is given, and is wrapped itself.

    Of ``model = wrap_towers(model)`` nobody sees the model again of which only parts are wrapped.
    """
    if not is_assigned_to(index, call, given):
        return False
    returned = [e for e in walk_for(function.body, cst.Return) if index.function(e) is function]
    values = [each.value for each in returned]
    return bool(values) and all(isinstance(each, cst.Call) and makes(each.func) for each in values)


def is_assigned_to(index: Index, call: cst.Call, given: cst.BaseExpression) -> bool:
    """Tell whether a call gives a name anew what it is given by that name."""
    above = index.parents[call]
    targets = above.targets if isinstance(above, cst.Assign) else ()
    return text_of(given) in {text_of(each.target) for each in targets}
