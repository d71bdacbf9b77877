"""How a model is sharded, where the call that makes it stands in the same source and says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.python.held import MODEL
from fsdp_migrate.source.python.last_values import assigned_at, last_value
from fsdp_migrate.source.python.nodes import dotted, given_by_name, last_name, literal
from fsdp_migrate.source.python.wrappers import SAME_MODEL


if TYPE_CHECKING:
    from fsdp_migrate.source.python.models import Models


_STRATEGIES = frozenset(
    {"FULL_SHARD", "HYBRID_SHARD", "NO_SHARD", "SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2", "_HYBRID_SHARD_ZERO"}
)
_PLACE = catalog.CONSTRUCTOR_ARGUMENTS.index("sharding_strategy")
_DEFAULT = "FULL_SHARD"
_ORIGINALS = "use_orig_params"
_POLICY = "auto_wrap_policy"
_POLICY_PLACE = catalog.CONSTRUCTOR_ARGUMENTS.index(_POLICY)
_DEEPEST = 3


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


def keeps_originals(models: Models, node: cst.BaseExpression, depth: int = 0) -> bool | None:
    """Tell whether a model had its own parameters, by ``use_orig_params``; None where that is not seen."""
    key = models.key_of(node)
    targets = models.made.get(key, []) if key is not None and key not in models.given else []
    found = {_keeps_of_target(models, target, depth) for target in targets}
    return found.pop() if len(found) == 1 else None


def is_one_unit(models: Models, node: cst.BaseExpression) -> bool:
    """Tell whether a model is one unit for certain: FSDP1's class is called here for it, and for no part."""
    index = models.index
    key = models.key_of(node)
    targets = models.made.get(key, []) if key is not None and key not in models.given else []
    made = [_made_by(models, target) for target in targets]
    calls = [cst.ensure_type(each, cst.Call) for each in index.by_kind.get(cst.Call, ())]
    others = [call for call in calls if models.is_constructor(call.func) and call not in made]
    is_manual = any(index.fsdp1(call.func) in catalog.MANUAL_WRAPPING for call in calls)
    return bool(made) and not others and not is_manual and all(map(_is_without_policy, made))


def _is_without_policy(call: cst.Call | None) -> bool:
    if call is None or any(arg.star for arg in call.args):
        return False
    placed = [arg.value for arg in call.args if arg.keyword is None][_POLICY_PLACE : _POLICY_PLACE + 1]
    return all(dotted(each) == "None" for each in (*given_by_name(call, _POLICY), *placed))


def _keeps_of_target(models: Models, target: cst.CSTNode, depth: int) -> bool | None:
    given_it = assigned_at(models.index, target)
    if isinstance(given_it, (cst.Attribute, cst.Name)) and depth < _DEEPEST:
        return keeps_originals(models, given_it, depth + 1)  # `model = self.model`
    value = _made_by(models, target)
    name = models.index.fsdp1(value.func) if value is not None else None
    if value is None or name is None or any(arg.star for arg in value.args):
        return None
    given = given_by_name(value, _ORIGINALS)
    if name in catalog.MANUAL_WRAPPING and not given:
        enabling = _enabling(models, value)
        if enabling is None or any(arg.star for arg in enabling.args):
            return None
        given = given_by_name(enabling, _ORIGINALS)
    elif name != catalog.FSDP and name not in catalog.MANUAL_WRAPPING:
        return None
    said = literal(given[0]) if given else False
    return said if isinstance(said, bool) else None


def _enabling(models: Models, call: cst.Call) -> cst.Call | None:
    """Return the ``enable_wrap(...)`` of the block in which ``wrap`` is called."""
    blocks = (each for each in models.index.ancestors(call) if isinstance(each, cst.With))
    items = (item.item for block in blocks for item in block.items)
    calls = (each for each in items if isinstance(each, cst.Call))
    return next((each for each in calls if models.index.fsdp1(each.func) == "enable_wrap"), None)


def _keeps_parameters(call: cst.Call) -> bool:
    given = given_by_name(call, _ORIGINALS)
    return bool(given) and literal(given[0]) is True


def _of_target(models: Models, target: cst.CSTNode) -> str | None:
    """Return the strategy in ``target = FSDP(net, sharding_strategy=...)``."""
    value = _made_by(models, target)
    return None if value is None else _of_call(models, value)


def _made_by(models: Models, target: cst.CSTNode) -> cst.Call | None:
    """Return the call in ``target = FSDP(net, ...)``, without ``.eval()`` and the like below it."""
    index = models.index
    statement = index.parents.get(index.parents[target])
    value = statement.value if isinstance(statement, cst.Assign) else None
    while (
        isinstance(value, cst.Call)
        and isinstance(value.func, cst.Attribute)
        and value.func.attr.value in SAME_MODEL
    ):
        value = value.func.value
    return value if isinstance(value, cst.Call) else None


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
