"""How a model is sharded, where the call that makes it stands in the same source and says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.python.held import MODEL
from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.nodes import dotted, given_by_name, last_name, literal
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


def are_whole(models: Models) -> bool:
    """Tell whether every FSDP1 model of a source is made here, by ``NO_SHARD``."""
    index = models.index
    told = (*models.links.gives.values(), *models.links.is_given.values())
    if any(MODEL in kind for kinds in told for kind in kinds):
        return False
    calls = [cst.ensure_type(node, cst.Call) for node in index.by_kind.get(cst.Call, ())]
    makes = [call for call in calls if models.is_constructor(call.func)]
    others = (call for call in calls if dotted(call.func) != "isinstance")
    is_given = any(index.fsdp1(arg.value) == catalog.FSDP for call in others for arg in call.args)
    is_manual = any(index.fsdp1(call.func) in catalog.MANUAL_WRAPPING for call in calls)
    found = {_of_call(models, call) for call in makes}
    return found == {"NO_SHARD"} and not is_given and not is_manual


def keep_shapes(models: Models) -> bool:
    """Tell whether the parameters of every FSDP1 model of a source had their own shapes at any time."""
    calls = [cst.ensure_type(node, cst.Call) for node in models.index.by_kind.get(cst.Call, ())]
    makes = [call for call in calls if models.is_constructor(call.func)]
    return are_whole(models) and all(_keeps_parameters(call) for call in makes)


def _keeps_parameters(call: cst.Call) -> bool:
    given = given_by_name(call, "use_orig_params")
    return bool(given) and literal(given[0]) is True


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
    return _of_call(models, value) if isinstance(value, cst.Call) else None


def _of_call(models: Models, value: cst.Call) -> str | None:
    """Return the strategy of a call that makes a model, where it is seen."""
    index = models.index
    if any(arg.star for arg in value.args):
        return None
    name = index.fsdp1(value.func)
    if name is None or (name != catalog.FSDP and name not in catalog.MANUAL_WRAPPING):
        return None
    given = given_by_name(value, "sharding_strategy")
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
    last = last_name(value)
    return last if last in _STRATEGIES else None
