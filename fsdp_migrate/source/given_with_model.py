"""Optimizers that a function is given with the model that it shards: ``def setup(model, optimizer)``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.kept_parameters import holds_parameters
from fsdp_migrate.source.python.nodes import dotted, model_argument, parameters_of, text_of, walk_for


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


_OPTIMIZER: Final = re.compile(r"(?:\w+_)?(?:opt|optim|optimizer)s?\Z")
_SHORT: Final = frozenset({"opt", "opts"})
"""What options are called as well: what is asked of them tells."""
_ASKED: Final = frozenset(
    {
        *("add_param_group", "defaults", "load_state_dict", "param_groups", "state", "state_dict", "step"),
        "zero_grad",
    }
)
# What names one, or makes one, and is none.
_NONE: Final = re.compile(r"\b(?:bool|Callable|Config|DictConfig|dict|Namespace|str|type|Type)\b")


def optimizer_beside(source: Source, call: cst.Call) -> str | None:
    """Return what may be an optimizer of the model that is sharded by a call: a parameter, or an attribute.

    It is used below the call, and nothing else is put in its place. One that the call itself is given is what
    the function behind it has to do with.
    """
    function, model = source.index.function(call), model_argument(call, 0)
    if function is None or model is None:
        return None
    given = {text_of(each.value) for each in call.args}
    if not isinstance(model, cst.Name):
        held = _held_by_object(source, call, function, text_of(model))
        return next((name for name in held if name not in given), None)
    params = parameters_of(function)
    if model.value not in {each.name.value for each in params}:
        return None
    names = (each.name.value for each in params if _may_be_one(each))
    return next(
        (name for name in names if name not in given and _is_kept(source, function, call, name)), None
    )


def _held_by_object(source: Source, call: cst.Call, function: cst.FunctionDef, model: str) -> Iterator[str]:
    """Yield the attributes with optimizers that a constructor set, of an object whose model is sharded later.

    ``self.optimizer = SGD(self.model.parameters())`` in ``__init__``, or one that this was given with the
    model, and ``self.model = FSDP(self.model)`` in another method, or below.
    """
    owner = source.index.class_of(call)
    if owner is None or not model.startswith("self."):
        return
    its = [each for each in source.assignments if source.index.class_of(each) is owner]
    in_init = [each for each in its if _is_constructor(source.index.function(each))]
    init = source.index.function(in_init[0]) if in_init else None
    params = {each.name.value: each for each in parameters_of(init)} if init is not None else {}
    is_given = any(
        _names_in(each.value) & params.keys() for each in in_init if text_of(each.targets[0].target) == model
    )
    for assign in in_init:
        name, param = text_of(assign.targets[0].target), params.get(text_of(assign.value))
        makes = holds_parameters(source, assign.value, model) and init is not function
        is_one = makes or (is_given and param is not None and _may_be_one(param))
        is_late = init is function and source.position(assign) > source.position(call)
        if not is_one or is_late or not name.startswith("self.") or _runs_above(source, function, assign):
            continue
        asked = _asked_of(source, assign)
        is_used = bool(asked & _ASKED) or (name.rpartition(".")[2] not in _SHORT and not asked)
        if is_used and sum(text_of(each.targets[0].target) == name for each in its) == 1:
            yield name


def _asked_of(source: Source, assign: cst.Assign) -> set[str]:
    """Return what the attribute is asked for that an assignment sets: ``self.opt = opt``."""
    name = text_of(assign.targets[0].target)
    asked = (node for node in source.attributes if name.startswith("self.") and dotted(node.value) == name)
    return {each.attr.value for each in asked}


def _names_in(node: cst.BaseExpression) -> set[str]:
    return {each.value for each in walk_for(node, cst.Name)}


def _is_constructor(function: cst.FunctionDef | None) -> bool:
    return function is not None and function.name.value == "__init__"


def _runs_above(source: Source, method: cst.FunctionDef, assign: cst.Assign) -> bool:
    """Tell whether a constructor runs the method that shards before it sets an attribute."""
    place, name = source.position(assign), f"self.{method.name.value}"
    init = source.index.function(assign)
    return any(
        dotted(each.func) == name and source.position(each) < place and source.index.function(each) is init
        for each in source.calls
    )


def _may_be_one(param: cst.Param) -> bool:
    says = param.annotation.annotation if param.annotation is not None else None
    default = text_of(param.default) if param.default is not None else "None"
    is_other = says is not None and _NONE.search(text_of(says)) is not None
    return _OPTIMIZER.match(param.name.value) is not None and not is_other and default in {"None", "()", "[]"}


def _is_kept(source: Source, function: cst.FunctionDef, call: cst.Call, name: str) -> bool:
    """Tell whether what a parameter was given is used below a call, and is not called: ``optimizer(ps)``."""
    index = source.index
    places = [each for each in source.loads if each.value == name and index.function(each) is function]
    above = [index.parents[each] for each in places]
    if any(isinstance(node, cst.Call) for node in above):
        return False
    asked = {node.attr.value for node in above if isinstance(node, cst.Attribute)}
    asked |= {name for each in above if isinstance(each, cst.Assign) for name in _asked_of(source, each)}
    if not asked <= _ASKED or (name in _SHORT and not asked):
        return False
    below = [each for each in places if index.order[each] > index.order[call]]
    bound = index.scopes[below[0]].lookup(name) if below and below[0] in index.scopes else []
    return bool(below) and all(each.kind == "param" for each in bound)
