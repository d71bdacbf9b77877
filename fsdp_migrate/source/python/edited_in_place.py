"""States that a module gave, and is given back, with nothing done to them in between but arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.nodes import text_of, walk, walk_for


if TYPE_CHECKING:
    from fsdp_migrate.source.python.scopes import Index


_ELEMENTWISE: Final = frozenset(
    {
        "add",
        "add_",
        "clamp",
        "clamp_",
        "div",
        "div_",
        "masked_fill",
        "masked_fill_",
        "mul",
        "mul_",
        "sub",
        "sub_",
    }
)
_ARITHMETIC: Final = (
    *(cst.Add, cst.Arg, cst.Attribute, cst.BinaryOperation, cst.Divide, cst.Float, cst.Index, cst.Integer),
    *(cst.Multiply, cst.Name, cst.SimpleString, cst.Subscript, cst.SubscriptElement, cst.Subtract),
)


def is_edited_in_place(index: Index, call: cst.Call) -> bool:
    """Tell whether it asks for a state that goes back to the same module, or gives it back.

    Of DTensors each element is what it was: ``state["weight"] *= mask``.

    Args:
        index: The source.
        call: ``layer.state_dict()``, or ``layer.load_state_dict(state)``.
    """
    func, function = cst.ensure_type(call.func, cst.Attribute), index.function(call)
    owner, above = text_of(func.value), index.parents[call]
    target: cst.BaseExpression | None
    if function is None:
        return False
    if func.attr.value == "state_dict":
        target = above.targets[0].target if isinstance(above, cst.Assign) else None
    else:
        target = call.args[0].value if call.args else None
        made = last_value(index, target) if isinstance(target, cst.Name) else None
        if made is None or text_of(made) != f"{owner}.state_dict()":
            return False
    if not isinstance(target, cst.Name):
        return False
    named = (each for each in walk_for(function.body, cst.Name) if each.value == target.value)
    uses = [each for each in named if not _is_an_attributes(index, each)]
    makes = [each for each in uses if isinstance(index.parents[each], cst.AssignTarget)]
    used = [each for each in uses if each not in makes]
    return (
        len(makes) == 1
        and any(_is_loaded(index, each, owner) for each in used)
        and all(_is_loaded(index, each, owner) or _is_arithmetic(index, each) for each in used)
    )


def _is_an_attributes(index: Index, name: cst.Name) -> bool:
    above = index.parents[name]
    return isinstance(above, cst.Attribute) and above.attr is name


def _is_loaded(index: Index, name: cst.Name, owner: str) -> bool:
    """Tell whether a state is given back: ``layer.load_state_dict(state)``."""
    arg = index.parents[name]
    call = index.parents[arg]
    return (
        isinstance(arg, cst.Arg)
        and isinstance(call, cst.Call)
        and text_of(call.func) == f"{owner}.load_state_dict"
    )


def _is_arithmetic(index: Index, name: cst.Name) -> bool:
    """Tell whether an item of a state is reckoned with where it is, and stays in the state."""
    item = index.parents[name]
    if not isinstance(item, cst.Subscript):
        return False
    for above in index.ancestors(item):
        if isinstance(above, cst.AugAssign):
            return above.target is item and _reckons(above.value)
        if isinstance(above, cst.Assign):
            targets = [each.target for each in above.targets]
            is_item = all(isinstance(t, cst.Subscript) and text_of(t.value) == name.value for t in targets)
            return is_item and _reckons(above.value)
        if isinstance(above, cst.Expr):
            return isinstance(above.value, cst.Call) and _reckons(above.value)
    return False


def _reckons(value: cst.BaseExpression) -> bool:
    """Tell whether an expression takes each element by itself."""
    for node in walk(value):
        if isinstance(node, cst.Call):
            if not isinstance(node.func, cst.Attribute) or node.func.attr.value not in _ELEMENTWISE:
                return False
        elif isinstance(node, (cst.BaseExpression, cst.BaseBinaryOp)) and not isinstance(node, _ARITHMETIC):
            return False
    return True
