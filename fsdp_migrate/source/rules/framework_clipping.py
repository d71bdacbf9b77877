"""Clipping by Accelerate in steps that only accumulate or of models that it forgot, and by Fabric.

FSDP1 kept the gradients of such steps where they are clipped; FSDP2 keeps them elsewhere until it reduces.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.framework_words import is_an_accelerator, is_of_fabric
from fsdp_migrate.source.python.freed_models import may_be_forgotten
from fsdp_migrate.source.python.nodes import args_by_name, last_name, named_arguments, text_of
from fsdp_migrate.source.python.parameters import model_of
from fsdp_migrate.source.sharded_parts import whole_of
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "framework-clipping"
CODES = ("FM326",)

_ACCUMULATED = (
    "where Accelerate shards this model, FSDP2 shows no gradients here in steps that only accumulate: the "
    "norm is 0, and what is clipped is the sum in the last of them; FSDP1 scaled down at each step what was "
    "added up so far. Put this below `if accelerator.sync_gradients:`, and see that max_norm is meant so."
)
_FORGOTTEN = (
    "where Accelerate shards this model, the norm is now that of the whole gradient. FSDP1 clipped each rank "
    "by the norm of its own shards here: free_memory() had emptied the list in which Accelerate looks for "
    "the model. See that max_norm is meant so; a model that is prepared again is in that list."
)
_LARGEST = (
    "where Accelerate shards this model, gradients are clipped by the largest of all ranks as before, but "
    "what this gives is a DTensor that `.item()` and `float()` read this rank's largest of: read "
    "`.full_tensor()` of it, on every rank."
)
_NOT_FINITE = (
    "where Fabric shards this model, the norm is the same as before; but one that is not finite raises now: "
    "FSDPStrategy passed over error_if_nonfinite, which is {}. Give it error_if_nonfinite=False to go on as "
    "before; fp16's scaler then passes over such a step. Or delete this comment, if it is to raise."
)
_BY_DEFAULT = "true unless you say otherwise"
_ASKED = "true here"
_STEPS = "gradient_accumulation_steps"
_PLUGIN = "gradient_accumulation_plugin"
_RAISES = "error_if_nonfinite"
_FABRICS = ("module", "optimizer", "clip_val", "max_norm", "norm_type", _RAISES)
"""The arguments of Fabric's ``clip_gradients`` in their order."""


def find(source: Source) -> Iterator[Found]:
    """Find these calls, given a model that the framework shards."""
    for call in source.calls:
        func = call.func
        first = call.args[0].value if call.args and not call.args[0].star else None
        if not isinstance(func, cst.Attribute) or first is None:
            continue
        if func.attr.value == "clip_grad_norm_" and is_an_accelerator(source, func.value):
            model = model_of(source.index, first)
            is_theirs = model is not None and _is_sharded_by(source, model, ("accelerate", "transformers"))
            if is_theirs and may_be_forgotten(source, call):
                yield Found("FM326", call, _FORGOTTEN, "commented")
            elif is_theirs and _is_accumulating(source, call) and may_accumulate(source):
                yield Found("FM326", call, _ACCUMULATED, "commented")
            elif is_theirs and _is_read(source, call) and _is_largest(call):
                yield Found("FM326", call, _LARGEST, "commented")
        elif func.attr.value == "clip_gradients" and _is_fabrics_norm(source, call, first):
            is_asked = _RAISES in args_by_name(call) or len(call.args) > _FABRICS.index(_RAISES)
            said = _NOT_FINITE.format(_ASKED if is_asked else _BY_DEFAULT)
            yield Found("FM326", call, said, "commented")


def _is_sharded_by(source: Source, node: cst.BaseExpression, names: tuple[str, ...]) -> bool:
    model = whole_of(source, node)
    return model is not None and source.models.sharded_by(model) in names


def _is_accumulating(source: Source, call: cst.Call) -> bool:
    """Tell whether it stands in ``accelerator.accumulate(model)``, not only where gradients are reduced."""
    if any("sync_gradients" in text_of(test) for test, _ in source.models.guards.facts(call)):
        return False
    for above in source.index.ancestors(call):
        if isinstance(above, cst.With):
            opened = (each.item for each in above.items)
            if any(isinstance(each, cst.Call) and _name(each) == "accumulate" for each in opened):
                return True
        if isinstance(above, cst.FunctionDef):
            break
    return False


def _is_read(source: Source, call: cst.Call) -> bool:
    """Tell whether anything is done with what a call gives."""
    return not isinstance(source.index.parents[call], cst.Expr)


def _is_largest(call: cst.Call) -> bool:
    """Tell whether Accelerate is asked for the largest gradient: ``norm_type=float("inf")``."""
    named = args_by_name(call)
    asked = named.get("norm_type") or (call.args[2] if len(call.args) > 2 else None)
    return asked is not None and re.search(r"\binf\b", text_of(asked.value)) is not None


def may_accumulate(source: Source) -> bool:
    """Tell whether an Accelerator of this source may add up several steps, as the call that makes it says."""
    made = [call for call in source.calls if _name(call) == "Accelerator"]
    for call in made:
        given = {name: text_of(value) for name, value in named_arguments(call).items()}
        if any(arg.star for arg in call.args) or _PLUGIN in given or given.get(_STEPS, "1") != "1":
            return True
    return not made


def _is_fabrics_norm(source: Source, call: cst.Call, model: cst.BaseExpression) -> bool:
    """Tell whether Fabric is asked for a norm, or may be by ``**``, and not told to take each."""
    if not is_of_fabric(source, call, model):
        return False
    in_order = (arg for arg in call.args if arg.keyword is None and not arg.star)
    placed = dict(zip(_FABRICS, in_order, strict=False))
    named = args_by_name(call)
    given = {name: text_of(arg.value) for name, arg in {**placed, **named}.items()}
    if any(arg.star for arg in call.args):
        return "clip_val" not in given and _RAISES not in given
    return given.get("max_norm", "None") != "None" and given.get(_RAISES, "True") == "True"


def _name(call: cst.Call) -> str:
    return last_name(call.func)
