"""Files of ranks that are loaded where copies of parameters were: ``ema.shadow = torch.load(path)``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.parts_of_objects import methods_of
from fsdp_migrate.source.python.nodes import dotted, placed_parameters, walk_for


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fsdp_migrate.source.parameter_values import ParameterValues

    File = Callable[[cst.BaseExpression], cst.Call | None]


def loaded_copies(values: ParameterValues, file: File) -> Iterator[cst.Call]:
    """Yield the loads whose value takes the place of a list or a dict of a sharded model's parameters.

    Args:
        values: The parameters.
        file: Returns the load of a rank's own file that gives a value.
    """
    source = values.source
    for assign in source.assignments:
        load = file(assign.value)
        if load is not None and any(_was_many(values, each.target) for each in assign.targets):
            yield load
    for call in source.calls:
        for place, arg in enumerate(call.args):
            load = file(arg.value)
            if load is not None and (_updates(values, call) or _is_kept(values, call, place)):
                yield load


def _was_many(values: ParameterValues, target: cst.BaseExpression) -> bool:
    """Tell whether a name or an attribute holds parameters by another assignment."""
    if isinstance(target, cst.Name):
        bound = values.source.index.scopes[target].lookup(target.value)
        given = (each.value for each in bound if each.value is not None and each.index is None)
        return any(values.is_many(each) for each in given)
    return isinstance(target, cst.Attribute) and values.is_many(target)


def _updates(values: ParameterValues, call: cst.Call) -> bool:
    """Tell whether a call puts what it is given into such a dict: ``ema.shadow.update(...)``."""
    func = call.func
    is_update = isinstance(func, cst.Attribute) and func.attr.value == "update"
    return is_update and values.is_many(cst.ensure_type(func, cst.Attribute).value)


def _is_kept(values: ParameterValues, call: cst.Call, place: int) -> bool:
    """Tell whether a method keeps what it is given where the object has them: ``ema.load(state)``."""
    keyword = call.args[place].keyword
    for method in methods_of(values.source, call.func):
        names = [each.name.value for each in placed_parameters(method)[1:]]
        name = keyword.value if keyword is not None else "".join(names[place : place + 1])
        for assign in walk_for(method.body, cst.Assign) if name in names else ():
            is_its = any(each.value == name for each in walk_for(assign.value, cst.Name))
            targets = (each.target for each in assign.targets)
            kept = [each for each in targets if (dotted(each) or "").startswith("self.")]
            if is_its and any(_was_many(values, each) for each in kept):
                return True
    return False
