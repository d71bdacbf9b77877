"""Objects of a project's classes that keep copies of a sharded model's parameters, and are no optimizers.

``ema = Average(model.parameters(), 0.99)``: what its ``state_dict()`` gives holds those copies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.python.last_values import last_value, values_set
from fsdp_migrate.source.python.nodes import last_name
from fsdp_migrate.source.python.optimizers import PARAMETERS, is_optimizer


if TYPE_CHECKING:
    from fsdp_migrate.source.python.text import Source


_HOLD: Final = (cst.Arg, cst.Dict, cst.DictElement, cst.Element, cst.List, cst.Tuple)
SAVED: Final = (
    "what this gives holds the copies that it keeps of a sharded model's parameters: DTensors now, of which "
    "each rank has its rows, where FSDP1's were its flat parts. On every rank put .full_tensor() of each "
    "into what is saved."
)
LOADED: Final = (
    "what this keeps are copies of a sharded model's parameters, DTensors now: FSDP1's runs saved flat "
    "parts, which do not fit. Of whole tensors, as .full_tensor() gives them, copy each in by "
    "torch.distributed.tensor.distribute_tensor(whole, kept.device_mesh, kept.placements)."
)


def is_average(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether it is an object of a class of the project that is given parameters, and steps none."""
    if isinstance(node, cst.Attribute):
        return any(_makes_one(source, each) for each in values_set(source.index, node))
    made = last_value(source.index, node) if isinstance(node, cst.Name) else None
    return made is not None and _makes_one(source, made)


def is_put_into_a_file(source: Source, node: cst.CSTNode) -> bool:
    """Tell whether a state is given to ``torch.save``, or to Lightning's checkpoint: alone, or in a dict."""
    above = source.index.parents[node]
    while isinstance(above, _HOLD):
        above = source.index.parents[above]
    if isinstance(above, cst.Call):
        return "torch.save" in source.index.qualified(above.func) and not source.contexts.is_summoned(node)
    home = source.index.function(node)
    is_put = isinstance(above, cst.Assign) and isinstance(above.targets[0].target, cst.Subscript)
    return is_put and home is not None and home.name.value == "on_save_checkpoint"


def _makes_one(source: Source, made: cst.BaseExpression) -> bool:
    given = [arg.value for arg in made.args] if isinstance(made, cst.Call) else []
    if not isinstance(made, cst.Call) or not any(PARAMETERS in source.models.kinds(each) for each in given):
        return False
    name = last_name(made.func)
    return (
        name in source.links.defined and name not in source.links.stepping and not is_optimizer(name.lower())
    )
