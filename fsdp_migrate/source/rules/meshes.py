"""Two models that are sharded over other ranks have DTensors that do not go together.

FSDP1's flat parts were plain tensors, which an average of weights took as long as they were of one size.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.python.nodes import last_name, named_arguments, text_of, walk_for
from fsdp_migrate.source.python.parameters import model_of
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.model_kinds import Key
    from fsdp_migrate.source.python.text import Source


NAME = "meshes"
CODES = ("FM423",)

_MEANT = (
    "these models are sharded over other ranks (process_group, device_mesh, HYBRID_SHARD), and DTensors of "
    "two meshes do not go together: shard both alike, or take .to_local() of each, whose parts must be equal."
)
_JOINS = re.compile(r"average|copy|ema|lerp|soft|swap|sync|update|^zip$")


def find(source: Source) -> Iterator[Found]:
    """Find what goes through the parameters of two such models together: ``zip(...)``, ``update_average``."""
    ranks = _ranks_by_model(source)
    if len(set(ranks.values())) < 2:
        return
    for call in source.calls:
        if _JOINS.search(last_name(call.func).lower()):
            given = {ranks[key] for arg in call.args if (key := _model_in(source, arg.value)) in ranks}
            if len(given) > 1:
                yield Found("FM423", call, _MEANT, "commented")


def _ranks_by_model(source: Source) -> dict[Key | None, tuple[str, ...]]:
    """Return over which ranks each name's model is sharded, as far as its wrapping says."""
    found: dict[Key | None, tuple[str, ...]] = {}
    for key, targets in source.models.made.items():
        for target in targets:
            line = source.index.statement(target)
            calls = walk_for(line, cst.Call) if isinstance(line, cst.SimpleStatementLine) else ()
            made = [each for each in calls if source.index.fsdp1(each.func) == catalog.FSDP]
            if len(made) == 1:
                found[key] = _ranks(made[0])
    return found


def _ranks(call: cst.Call) -> tuple[str, ...]:
    given = {name: text_of(value) for name, value in named_arguments(call).items()}
    is_hybrid = "HYBRID" in given.get("sharding_strategy", "").upper()
    return given.get("process_group", ""), given.get("device_mesh", ""), str(is_hybrid)


def _model_in(source: Source, node: cst.BaseExpression) -> Key | None:
    """Return the name of the model that an argument is, or whose parameters it is."""
    return source.models.key_of(model_of(source.index, node) or node)
