"""Parameters that are thawed in mid-run, of models that Accelerate shards: its FSDP2 fails in bf16 and fp16.

What FSDP2 has gathered once keeps whether it is trained, which ``prepare_fully_shard`` sets right.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.fails_at_once import is_backward
from fsdp_migrate.source.framework_words import frameworks_shard
from fsdp_migrate.source.parameter_values import ParameterValues
from fsdp_migrate.source.python.loops import loops_around
from fsdp_migrate.source.python.nodes import text_of, walk_for
from fsdp_migrate.source.python.parameters import PARAMETERS
from fsdp_migrate.source.sharded_parts import whole_of
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "thawed-parameters"
CODES = ("FM354",)

_MEANT = (
    "in bf16 or fp16 Accelerate's FSDP2 fails at the first backward behind this, where a forward has run "
    "before: torch 2.13 says 'attempting to assign a gradient with dtype'. FSDP1 went on. Save here, and go "
    "on in a run that thaws before its first forward; or train these from the start, with a learning rate of "
    "0. In float32 it goes on: delete this comment."
)
# What Hugging Face's Trainer runs between forwards.
_BETWEEN = re.compile(r"^on_(?:epoch|step|substep|evaluate|save|pre_optimizer|optimizer)")


def find(source: Source) -> Iterator[Found]:
    """Find where a loop that trains, or a callback, thaws parameters of a model that Accelerate shards."""
    if "requires_grad" not in source.code:
        return
    values = ParameterValues(source)
    for node, thawed in _thawed(source):
        is_its = values.is_one(thawed) or whole_of(source, thawed) is not None
        if (
            is_its
            and _is_in_mid_run(source, node)
            and any(frameworks_shard(source, each) for each in (thawed, *_gone_through(source, node)))
        ):
            yield Found("FM354", node, _MEANT, "commented")


def _thawed(source: Source) -> Iterator[tuple[cst.CSTNode, cst.BaseExpression]]:
    """Yield where something is thawed, and what: ``p.requires_grad = True``, ``m.requires_grad_()``."""
    for assign in source.assignments:
        for each in assign.targets:
            is_its = isinstance(each.target, cst.Attribute) and each.target.attr.value == "requires_grad"
            if is_its and text_of(assign.value) != "False":
                yield assign, cst.ensure_type(each.target, cst.Attribute).value
    for call in source.calls:
        func = call.func
        is_off = bool(call.args) and text_of(call.args[0].value) == "False"
        if isinstance(func, cst.Attribute) and func.attr.value == "requires_grad_" and not is_off:
            yield call, func.value


def _gone_through(source: Source, node: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """Yield the models whose parameters the loops around a place go through."""
    for loop in loops_around(source.index, node):
        for call in walk_for(loop.iter, cst.Call):
            if isinstance(call.func, cst.Attribute) and call.func.attr.value in PARAMETERS:
                yield whole_of(source, call.func.value) or call.func.value


def _is_in_mid_run(source: Source, node: cst.CSTNode) -> bool:
    """Tell whether a place comes between forwards: in a loop with a backward, or in a callback."""
    function = source.index.function(node)
    if function is not None and _BETWEEN.match(function.name.value):
        return True
    loops = (each for each in source.index.ancestors(node) if isinstance(each, (cst.For, cst.While)))
    return any(is_backward(call) for loop in loops for call in walk_for(loop.body, cst.Call))
