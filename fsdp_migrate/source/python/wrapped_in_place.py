"""Functions that wrap parts of what they are given, in place: ``wrap_blocks(net)`` of one source."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.nodes import argument_of, parameters_of, placed_parameters, text_of, walk_for


if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from fsdp_migrate.source.python.guards import Guards
    from fsdp_migrate.source.python.model_kinds import Key
    from fsdp_migrate.source.python.scopes import Index

    Makes = Callable[[cst.BaseExpression], bool]


_DEEPEST = 3


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


class WrappedAnew:
    """Which calls wrap a model in any case, and take its place where it was: ``model = wrap(model)``."""

    def __init__(self, guards: Guards, makes: Makes) -> None:
        self._guards, self._makes = guards, makes

    def always(self, func: cst.BaseExpression, depth: int = 0) -> bool:
        """Tell whether calling something always wraps: the class, or a function that returns what does."""
        if self._makes(func):
            return True
        functions = list(self._guards.functions(func)) if depth < _DEEPEST else []
        return bool(functions) and all(self._returns_it(each, depth) for each in functions)

    def is_replaced(self, call: cst.Call, given: cst.BaseExpression, *, always: bool) -> bool:
        """Tell whether a call gives a name anew what it is given by that name, wrapped in any case.

        Nobody sees the model again of which only parts are wrapped. ``always``: another file says that it is.
        """
        above = self._guards.index.parents[call]
        targets = above.targets if isinstance(above, cst.Assign) else ()
        is_anew = text_of(given) in {text_of(each.target) for each in targets}
        return is_anew and (always or self.always(call.func))

    def _returns_it(self, function: cst.FunctionDef, depth: int) -> bool:
        index = self._guards.index
        returned = [e for e in walk_for(function.body, cst.Return) if index.function(e) is function]
        values = [each.value for each in returned]
        return bool(values) and all(
            isinstance(each, cst.Call) and self.always(each.func, depth + 1) for each in values
        )
