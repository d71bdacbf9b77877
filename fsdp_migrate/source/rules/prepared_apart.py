"""``prepare(model)`` beside Accelerate's plugin: its FSDP2 takes it with its optimizer only.

A model that the source shards itself is none for Accelerate, which knows it by FSDP1's class.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.catalog import MODEL_ALONE, PREPARED_MODEL
from fsdp_migrate.source.python.accelerate_models import asks_for_plugin, prepared
from fsdp_migrate.source.python.nodes import dotted, text_of, walk_for
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "accelerate-prepare"
CODES = ("FM303", "FM449")

_MEANT = (
    "Accelerate's FSDP2 refuses it: a model and its optimizer must be passed together. Make the optimizer "
    "first, and write `model, optimizer = accelerator.prepare(model, optimizer)`; other objects may go along."
)
_SEVERAL = (
    "Accelerate's FSDP2 takes one model in a call, with its optimizer: give each that is trained a call of "
    "its own, and leave out those that are not, `ema.to(accelerator.device)`."
)
_AGAIN = (
    "this model is sharded already: FSDP1's Accelerate left as it was, and this one it would wrap once more, "
    "which raises. Give it the optimizer and loaders without the model, launch it without FSDP of its own, "
    "and clip by fsdp_migrate.runtime.clip_grad_norm_(model, ...)."
)
_PREPARES = ("accelerator.prepare", "accelerator.prepare_model")
_OTHERS = re.compile(r"optim|loader|sched|dataset|config|tokenizer|(^|_)(dl|lr)(_|$)")


def find(source: Source) -> Iterator[Found]:
    """Find these calls in a source that says how Accelerate shards; with DDP they are right."""
    calls = [call for call in source.calls if (dotted(call.func) or "").endswith(_PREPARES)]
    again = [call for call in calls if any(_is_sharded(source, call, arg.value) for arg in call.args)]
    for call in again:
        yield Found("FM303", call, _AGAIN, "commented")
    said = [(call, meant) for call in calls if call not in again and (meant := _refused(call))]
    if said and asks_for_plugin(source.index):
        for call, meant in said:
            yield Found("FM449", call, meant, "commented")


def _refused(call: cst.Call) -> str:
    """Return what is said of a call that Accelerate's FSDP2 refuses, by what its arguments are called."""
    if (dotted(call.func) or "").endswith("accelerator.prepare_model"):
        return _MEANT  # it takes no optimizer, and refuses FSDP2
    if re.search(MODEL_ALONE, text_of(call.func) + _given(call)):
        return _MEANT
    if any(arg.star for arg in call.args):
        return ""
    names = [(dotted(arg.value) or "?").split(".")[-1].lower() for arg in call.args]
    others = [name for name in names if _OTHERS.search(name)]
    models = [name for name in names if name not in others and re.search(PREPARED_MODEL, name)]
    if len(models) > 1:
        return _SEVERAL
    return _MEANT if others == names and any("optim" in name for name in names) else ""


def _is_sharded(source: Source, call: cst.Call, node: cst.BaseExpression) -> bool:
    """Tell whether the source has sharded itself what a call is given."""
    models = source.models
    key = models.key_of(node)
    if key is None or models.certainty(node) is None:
        return False
    for target in models.made.get(key, ()):
        line = source.index.statement(target)
        made = [each for each in walk_for(line, cst.Call) if "fsdp" in models.kinds(each)]
        is_own = any(not prepared(each) for each in made) and call not in made
        if is_own and source.index.order[target] < source.index.order[call]:
            return not source.index.excludes(target, call)
    return False


def _given(call: cst.Call) -> str:
    return f"({', '.join(text_of(each.value) if each.keyword is None else '*' for each in call.args)})"
