"""Names of an optimizer's own state, given to FSDP1's function for it, which asks the optimizer anyway."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.nodes import text_of


if TYPE_CHECKING:
    from fsdp_migrate.source.python.text import Source


def own_state(source: Source, state: cst.BaseExpression, optimizer: cst.BaseExpression) -> cst.Call | None:
    """Return the ``optimizer.state_dict()`` that a state is, or that a name of it was bound to."""
    value = state
    if isinstance(state, cst.Name) and state in source.index.scopes:
        held = last_value(source.index, state)
        value = state if held is None else held
    if not isinstance(value, cst.Call) or value.args:
        return None
    is_here = source.index.function(value) is source.index.function(state)
    return value if is_here and text_of(value.func) == f"{text_of(optimizer)}.state_dict" else None


def bound_for_it_alone(source: Source, state: cst.Call) -> cst.Assign | None:
    """Return the line that gives a state a name, if FSDP1's function for such states alone reads it, once."""
    line = source.index.parents[state]
    target = line.targets[0].target if isinstance(line, cst.Assign) and len(line.targets) == 1 else None
    if not isinstance(line, cst.Assign) or not isinstance(target, cst.Name) or line.value is not state:
        return None
    readers = source.readers(target)
    return line if len(readers) == 1 and _is_given_with_its_optimizer(source, readers[0], state) else None


def _is_given_with_its_optimizer(source: Source, name: cst.Name, state: cst.Call) -> bool:
    argument = source.index.parents[name]
    call = source.index.parents[argument] if isinstance(argument, cst.Arg) else None
    if not isinstance(call, cst.Call) or source.class_function(call) != "optim_state_dict":
        return False
    return any(own_state(source, name, arg.value) is state for arg in call.args if arg is not argument)
