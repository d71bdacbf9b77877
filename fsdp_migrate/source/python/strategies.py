"""How a model is sharded, where the call that makes it stands in the same source and says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.nodes import dotted
from fsdp_migrate.source.python.wrappers import SAME_MODEL


if TYPE_CHECKING:
    from fsdp_migrate.source.python.models import Models


_STRATEGIES = frozenset(
    {"FULL_SHARD", "HYBRID_SHARD", "NO_SHARD", "SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2", "_HYBRID_SHARD_ZERO"}
)
_PLACE = catalog.CONSTRUCTOR_ARGUMENTS.index("sharding_strategy")
_DEFAULT = "FULL_SHARD"


def is_sharded_for_certain(models: Models, node: cst.BaseExpression) -> bool:
    """Tell whether each call that makes a name's model stands here, and none says ``NO_SHARD``."""
    key = models.key_of(node)
    targets = models.made.get(key, []) if key is not None and key not in models.given else []
    found = {_of_target(models, target) for target in targets}
    return bool(found) and found.isdisjoint({None, "NO_SHARD"})


def _of_target(models: Models, target: cst.CSTNode) -> str | None:
    """Return the strategy in ``target = FSDP(net, sharding_strategy=...)``."""
    index = models.index
    statement = index.parents.get(index.parents[target])
    value = statement.value if isinstance(statement, cst.Assign) else None
    while (
        isinstance(value, cst.Call)
        and isinstance(value.func, cst.Attribute)
        and value.func.attr.value in SAME_MODEL
    ):
        value = value.func.value
    if not isinstance(value, cst.Call) or any(arg.star for arg in value.args):
        return None
    name = index.fsdp1(value.func)
    if name is None or (name != catalog.FSDP and name not in catalog.MANUAL_WRAPPING):
        return None
    given = [arg.value for arg in value.args if arg.keyword and arg.keyword.value == "sharding_strategy"]
    if name == catalog.FSDP:
        placed = [arg.value for arg in value.args if arg.keyword is None]
        given += placed[_PLACE : _PLACE + 1]
        if not given:
            return _DEFAULT
    # What is not said of `wrap` may stand at `enable_wrap`.
    return _named(models, given[0]) if given else None


def _named(models: Models, value: cst.BaseExpression) -> str | None:
    """Return which strategy an expression is, if it is one only."""
    if dotted(value) == "None":
        return _DEFAULT
    if isinstance(value, cst.Name) and value in models.index.scopes:
        held = last_value(models.index, value)
        value = value if held is None else held
    last = (dotted(value) or "").rpartition(".")[2]
    return last if last in _STRATEGIES else None
