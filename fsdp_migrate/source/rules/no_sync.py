"""``model.no_sync()`` becomes ``no_sync(model)``; named without being called, a partial of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.framework_words import is_an_accelerator, mixed, unsynced
from fsdp_migrate.source.method_calls import on_model, renamed, sureness_of_lost, unbound
from fsdp_migrate.source.python.accelerate_models import ACCELERATE
from fsdp_migrate.source.python.last_values import values_set
from fsdp_migrate.source.python.nodes import short, text_of
from fsdp_migrate.source.rules.framework_clipping import may_accumulate
from fsdp_migrate.source.uses import Found, Need, Replace


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "no-sync"
CODES = ("FM312", "FM333")

NO_SYNC = Need("fsdp_migrate.runtime", "no_sync")
_PARTIAL = Need("functools", "partial")
_LISTED = (
    "Accelerate asks each thing that this is given, and under FSDP2 a list of models raises, where FSDP1 "
    "passed over it: give it the models, {}(*{})."
)
_UNSURE = "if this is the sharded model, take fsdp_migrate.runtime.no_sync(model)."


def find(source: Source) -> Iterator[Found]:
    """Find FSDP1's ``no_sync``, called or not."""
    for call in source.calls:
        if unbound(source, call, "no_sync"):
            new = source.local_name(NO_SYNC)
            edit = renamed(call.func, new)
            yield Found("FM312", call, f"{new}(...)", "rewritten", (edit,), (NO_SYNC,), (call.func,))
        yield from _of_list(source, call)
    for node in source.attributes:
        if node.attr.value == "no_sync" and node not in source.references and not _is_set(source, node):
            yield from _of_method(source, node)


def _of_list(source: Source, call: cst.Call) -> Iterator[Found]:
    """Find ``accelerator.accumulate(models)``, where ``models`` is a list of what Accelerate shards."""
    func, given = call.func, call.args[0] if len(call.args) == 1 else None
    if not isinstance(func, cst.Attribute) or func.attr.value not in {"accumulate", "no_sync"}:
        return
    if given is None or given.star or not is_an_accelerator(source, func.value):
        return
    kinds = source.models.kinds(given.value)
    is_list = any(kind.endswith(">fsdp") for kind in kinds) and "fsdp" not in kinds
    is_run = func.attr.value == "no_sync" or may_accumulate(source)
    if is_list and is_run and any(kind.endswith(f">{ACCELERATE}") for kind in kinds):
        said = _LISTED.format(short(func, 40), short(given.value, 30))
        yield Found("FM312", call, said, "commented")


def _is_set(source: Source, node: cst.Attribute) -> bool:
    """Tell whether it is a flag that the same class sets, ``self.no_sync = False``, or is set here."""
    if isinstance(source.index.parents[node], cst.AssignTarget):
        return True
    return text_of(node) == "self.no_sync" and bool(values_set(source.index, node))


def _of_method(source: Source, node: cst.Attribute) -> Iterator[Found]:
    sure = sureness_of_lost(source, node.value)
    if sure == "mixed":
        said = f"{mixed(source, node.value)}take {unsynced(source, node.value)}."
        yield Found("FM333", node, said, "commented")
    elif sure in {"likely", "unknown"} and not _is_given_a_model(source, node):
        yield Found("FM312", node, _UNSURE, "commented")
    elif sure == "sure":
        yield _rewritten(source, node)


def _is_given_a_model(source: Source, node: cst.Attribute) -> bool:
    """Tell whether it is a framework's own, which takes the model: ``get_accelerator().no_sync(model)``."""
    above = source.index.parents[node]
    return isinstance(above, cst.Call) and above.func is node and bool(above.args)


def _rewritten(source: Source, node: cst.Attribute) -> Found:
    new, above = source.local_name(NO_SYNC), source.index.parents[node]
    model = short(node.value, 30)
    if isinstance(above, cst.Call) and above.func is node:

        def build(updated: cst.Call) -> cst.Call:
            assert isinstance(updated.func, cst.Attribute)
            return on_model(updated, updated.func.value, new)

        return Found("FM312", above, f"{new}({model})", "rewritten", (Replace(above, build),), (NO_SYNC,))
    partial = source.local_name(_PARTIAL)

    def bind(updated: cst.Attribute) -> cst.Call:
        comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        return cst.Call(cst.Name(partial), [cst.Arg(cst.Name(new), comma=comma), cst.Arg(updated.value)])

    needs = (NO_SYNC, _PARTIAL)
    return Found("FM312", node, f"partial({new}, {model})", "rewritten", (Replace(node, bind),), needs)
