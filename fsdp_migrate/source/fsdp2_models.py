"""Models that a project shards by FSDP2 itself: what asks whether they are FSDP1's stays, and stays false."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.python.nodes import text_of
from fsdp_migrate.source.python.wrappers import FSDP2
from fsdp_migrate.source.python.written_names import written_names
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from fsdp_migrate.source.python.text import Source


_STAYS: Final = "stays: the project shards this by FSDP2 itself, and it was never FSDP1's"
_KINDS: Final = frozenset({"ddp", "fsdp2"})


def stays(code: str, node: cst.CSTNode, covers: tuple[cst.CSTNode, ...]) -> Found:
    """Return what is said of a use that is about such a model."""
    return Found(code, node, _STAYS, "kept", covers=covers)


def is_fsdp2s(source: Source, model: cst.BaseExpression) -> bool:
    """Tell whether a model is FSDP2's, or DistributedDataParallel's, by every value that it has."""
    if source.links.fsdp2_alone or _is_sharded_above(source, model):
        return True
    kinds = source.models.kinds(model)
    if not kinds <= _KINDS:
        return False
    bindings = source.index.bindings_of(model) if isinstance(model, cst.Name) else []
    is_followed = "fsdp2" in kinds and _is_called_here(source, model)
    return bool(bindings) and all(
        _gives_fsdp2s(source, each.value) if each.value is not None else each.kind == "param" and is_followed
        for each in bindings
    )


def _is_called_here(source: Source, node: cst.CSTNode) -> bool:
    """Tell whether nothing but this file calls the function around, which is given no other models then."""
    function = source.index.function(node)
    return function is None or source.index.path_of(function) in source.links.called_here


def _gives_fsdp2s(source: Source, value: cst.BaseExpression) -> bool:
    if not isinstance(value, cst.Call):
        return False
    names = written_names(source.index, value.func) | {text_of(value.func)}
    return bool(source.index.qualified(value.func) & FSDP2 or names & source.links.gives_fsdp2s)


def _is_sharded_above(source: Source, model: cst.BaseExpression) -> bool:
    """Tell whether the same block gives a model to FSDP2's function before, and FSDP1's is not made of it."""
    if "fsdp" in source.models.kinds(model):
        return False
    above = set(source.index.ancestors(model))
    function, order = source.index.function(model), source.index.order
    for call in source.calls:
        is_before = order[call] < order[model] and source.index.function(call) is function
        statement = source.index.parents[call]
        if not is_before or not isinstance(statement, cst.Expr) or not call.args:
            continue
        block = source.index.parents[source.index.parents[statement]]
        is_its = text_of(call.args[0].value) == text_of(model) and block in above
        if is_its and source.index.qualified(call.func) & FSDP2:
            return True
    return False
