"""``functools.partial(FSDP, ...)`` becomes a partial of ``prepare_fully_shard``, where its calls are seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.python.layout import dict_argument
from fsdp_migrate.source.rules.constructor import PREPARE
from fsdp_migrate.source.uses import Found, Replace


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "partial"
CODES = ("FM303", "FM331")

_UNSEEN = (
    "a partial of FSDP whose calls are not all seen here: make it "
    "functools.partial(prepare_fully_shard, fsdp1_config={...}), and see that calls give it the model only."
)


def find(source: Source) -> Iterator[Found]:
    """Find every ``functools.partial`` of the class."""
    for call in source.calls:
        if "functools.partial" not in source.index.qualified(call.func) or not call.args:
            continue
        first = call.args[0].value
        if source.index.fsdp1(first) != catalog.FSDP:
            continue
        if len(call.args) > 1 and _is_only_called_with_a_model(source, call):
            yield _rewritten(source, call, first)
        else:
            yield Found("FM303", call, _UNSEEN, "commented", covers=(first,))


def _rewritten(source: Source, call: cst.Call, first: cst.BaseExpression) -> Found:
    prepare = source.local_name(PREPARE)

    def build(updated: cst.Call) -> cst.Call:
        # The class stands where a call of it has the model.
        changed = dict_argument(updated, ("class",))
        tight = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
        config = changed.args[1].with_changes(keyword=cst.Name("fsdp1_config"), equal=tight)
        target = changed.args[0].with_changes(value=cst.Name(prepare))
        return changed.with_changes(args=[target, config])

    becomes = f"functools.partial({prepare}, fsdp1_config={{...}})"
    return Found("FM331", call, becomes, "rewritten", (Replace(call, build),), (PREPARE,), (first,))


def _is_only_called_with_a_model(source: Source, call: cst.Call) -> bool:
    if any(arg.keyword is None and arg.star != "**" for arg in call.args[1:]):
        return False
    above = source.index.parents[call]
    if not isinstance(above, cst.Assign) or len(above.targets) != 1:
        return False
    target = above.targets[0].target
    if not isinstance(target, cst.Name):
        return False
    loads = source.readers(target)
    return bool(loads) and all(_gives_a_model_only(source.index.parents[name], name) for name in loads)


def _gives_a_model_only(above: cst.CSTNode, name: cst.Name) -> bool:
    if not isinstance(above, cst.Call) or above.func is not name or len(above.args) != 1:
        return False
    return above.args[0].keyword is None and not above.args[0].star
