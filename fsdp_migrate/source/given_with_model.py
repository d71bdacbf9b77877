"""Optimizers that a function is given with the model that it shards: ``def setup(model, optimizer)``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.python.nodes import model_argument, parameters_of, text_of


if TYPE_CHECKING:
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
    """Return the parameter that may be an optimizer of the model which its function shards by a call.

    It is used below the call, and nothing else is put in its place. One that the call itself is given is what
    the function behind it has to do with.
    """
    function, model = source.index.function(call), model_argument(call, 0)
    if function is None or not isinstance(model, cst.Name):
        return None
    params = parameters_of(function)
    if model.value not in {each.name.value for each in params}:
        return None
    names = (each.name.value for each in params if _may_be_one(each))
    given = {text_of(each.value) for each in call.args}
    return next(
        (name for name in names if name not in given and _is_kept(source, function, call, name)), None
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
    if not asked <= _ASKED or (name in _SHORT and not asked):
        return False
    below = [each for each in places if index.order[each] > index.order[call]]
    bound = index.scopes[below[0]].lookup(name) if below and below[0] in index.scopes else []
    return bool(below) and all(each.kind == "param" for each in bound)
