"""``ShardedGradScaler(...)`` becomes ``grad_scaler(...)``, whose ranks agree on an overflow as its did."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.method_calls import renamed
from fsdp_migrate.source.python.nodes import arguments, keyword
from fsdp_migrate.source.uses import Found, Need, Replace


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "grad-scaler"
CODES = ("FM314",)

SCALER = Need("fsdp_migrate.runtime", "grad_scaler")
_CLASS = Need("torch.amp", "GradScaler")
_ORDER = (
    "device",
    "init_scale",
    "backoff_factor",
    "growth_factor",
    "growth_interval",
    "enabled",
    "process_group",
)
_MEANT = "call fsdp_migrate.runtime.grad_scaler with the same arguments, by their names."


def find(source: Source) -> Iterator[Found]:
    """Find every use of the class: calls, and where it is only named."""
    for node, name in source.references.items():
        if name != "ShardedGradScaler":
            continue
        above = source.index.parents[node]
        if isinstance(above, cst.Call) and above.func is node:
            yield _of_call(source, above, node)
        else:
            new = source.local_name(_CLASS)
            edit = renamed(node, new)
            yield Found("FM314", node, new, "rewritten", (edit,), (_CLASS,), (node,))


def _of_call(source: Source, call: cst.Call, node: cst.BaseExpression) -> Found:
    given = arguments(call, _ORDER)
    positional = [arg for arg in call.args if arg.keyword is None]
    # Before torch 2.1 there was no `device`, and a number came first.
    if given is None or (positional and not isinstance(positional[0].value, cst.SimpleString)):
        return Found("FM314", call, _MEANT, "commented", covers=(node,))
    new = source.local_name(SCALER)

    def build(updated: cst.Call) -> cst.Call:
        # Ours takes all but the device by its name.
        args = [
            arg
            if arg.keyword is not None or place == 0
            else arg.with_changes(keyword=cst.Name(_ORDER[place]), equal=keyword("x", arg.value).equal)
            for place, arg in enumerate(updated.args)
        ]
        return updated.with_changes(func=cst.Name(new), args=args)

    return Found("FM314", call, f"{new}(...)", "rewritten", (Replace(call, build),), (SCALER,), (node,))
