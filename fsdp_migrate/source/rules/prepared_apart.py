"""``prepare(model)`` beside Accelerate's plugin: its FSDP2 takes it with its optimizer only."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fsdp_migrate.source.catalog import MODEL_ALONE
from fsdp_migrate.source.python.nodes import text_of
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    import libcst as cst

    from fsdp_migrate.source.python.text import Source


NAME = "accelerate-prepare"
CODES = ("FM449",)

_PLUGIN = re.compile(r"^accelerate\..*\bFullyShardedDataParallelPlugin$")
_MEANT = (
    "Accelerate's FSDP2 refuses it: a model and its optimizer must be passed together. Make the optimizer "
    "first, and write `model, optimizer = accelerator.prepare(model, optimizer)`; other objects may go along."
)


def find(source: Source) -> Iterator[Found]:
    """Find these calls in a source that says how Accelerate shards; with DDP they are right."""
    alone = [call for call in source.calls if re.search(MODEL_ALONE, text_of(call.func) + _given(call))]
    if alone and any(_asks_for_fsdp(source, call) for call in source.calls):
        for call in alone:
            yield Found("FM449", call, _MEANT, "commented")


def _given(call: cst.Call) -> str:
    return f"({', '.join(text_of(each.value) if each.keyword is None else '*' for each in call.args)})"


def _asks_for_fsdp(source: Source, call: cst.Call) -> bool:
    """Tell whether a call makes the plugin, or takes one."""
    return any(_PLUGIN.match(name) for name in source.index.qualified(call.func)) or any(
        arg.keyword is not None and arg.keyword.value == "fsdp_plugin" for arg in call.args
    )
