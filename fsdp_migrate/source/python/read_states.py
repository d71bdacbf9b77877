"""States of optimizers that a source only reads: for their keys, or for how many elements they have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.nodes import dotted
from fsdp_migrate.source.python.optimizers import STATE


if TYPE_CHECKING:
    from fsdp_migrate.source.python.models import Models
    from fsdp_migrate.source.python.scopes import Index


def is_asked_for_keys(index: Index, call: cst.Call) -> bool:
    """Tell whether a state is asked for its keys alone, which sharding leaves: ``o.state_dict().keys()``."""
    above = index.parents.get(call)
    if isinstance(above, cst.Attribute) and above.attr.value == "keys":
        asked = index.parents.get(above)
        return isinstance(asked, cst.Call) and asked.func is above
    given = index.parents.get(above) if isinstance(above, cst.Arg) else None
    is_counted = isinstance(given, cst.Call) and dotted(given.func) == "len"
    return is_counted or (
        isinstance(above, cst.ComparisonTarget) and isinstance(above.operator, (cst.In, cst.NotIn))
    )


def is_summed_state(models: Models, call: cst.Call) -> bool:
    """Tell whether ``v.numel()`` of an optimizer's state is added up, which was one rank's part."""
    func = call.func
    if not isinstance(func, cst.Attribute) or STATE not in models.kinds(func.value):
        return False
    for above in models.index.ancestors(call):
        if isinstance(above, cst.AugAssign):
            return isinstance(above.operator, cst.AddAssign)
        if isinstance(above, cst.Call) and dotted(above.func) == "sum":
            return True
        if isinstance(above, (cst.BaseSmallStatement, cst.Comparison, cst.BaseCompoundStatement)):
            return False
    return False
