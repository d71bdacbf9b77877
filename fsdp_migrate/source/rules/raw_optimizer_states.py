"""``optimizer.state_dict()`` of a sharded model holds one rank's part, keyed by numbers, as under FSDP1."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.nodes import text_of, walk_for
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "raw-optimizer-state"
CODES = ("FM425",)

_MEANT = (
    "this is one rank's part of the state, keyed by numbers, now as DTensors: save "
    "full_optimizer_state_dict(model, optimizer) of fsdp_migrate.runtime, or sharded_state_dict."
)


def find(source: Source) -> Iterator[Found]:
    """Find these calls in functions that save the state of a sharded model too."""
    for call in source.calls:
        func = call.func
        if not isinstance(func, cst.Attribute) or func.attr.value != "state_dict" or call.args:
            continue
        if _is_optimizer(func.value) and _saves_a_model(source, call):
            yield Found("FM425", call, _MEANT, "commented")


def _is_optimizer(node: cst.BaseExpression) -> bool:
    last = text_of(node).lower().split(".")[-1]
    return "optim" in last or last in {"opt", "_opt"} or last.endswith("_opt")


def _saves_a_model(source: Source, call: cst.Call) -> bool:
    """Tell whether the same function takes the state of a model that is certainly sharded."""
    around = source.index.function(call) or source.module
    for other in walk_for(around, cst.Call):
        func = other.func
        if not isinstance(func, cst.Attribute) or func.attr.value != "state_dict":
            continue
        if source.index.excludes(other, call) or source.index.function(other) is not source.index.function(
            call
        ):
            continue
        sharded = source.models.certainty(func.value) == "certain" or source.models.is_guarded(func.value)
        if sharded and not source.models.is_other_branch(func.value):
            return True
    return False
