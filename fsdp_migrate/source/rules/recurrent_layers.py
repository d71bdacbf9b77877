"""Recurrent layers of models that Accelerate's FSDP2 shards: on CUDA they keep the weights of the first step.

``prepare_fully_shard`` leaves their weights in place; ``doctor`` knows the fault as recurrent-layers-on-cuda.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "recurrent-layers"
CODES = ("FM343",)

_LAYERS = frozenset(
    f"torch.nn.{place}{name}" for place in ("", "modules.rnn.") for name in ("GRU", "LSTM", "RNN")
)
_MEANT = (
    "under Accelerate's FSDP2 this layer computes on CUDA with the weights of the first step for good:"
    " torch moves them. Before the model is prepared, set `layer.flatten_parameters = lambda: None` on it."
)


def find(source: Source) -> Iterator[Found]:
    """Find where recurrent layers are made, and classes of such, in projects that Accelerate shards."""
    if not source.links.has_recurrent_layers:
        return
    for call in source.calls:
        if _LAYERS & source.index.qualified(call.func):
            yield Found("FM343", call, _MEANT, "commented")
    for node in source.index.by_kind.get(cst.ClassDef, ()):
        owner = cst.ensure_type(node, cst.ClassDef)
        if any(_LAYERS & source.index.qualified(base.value) for base in owner.bases):
            yield Found("FM343", owner, _MEANT, "commented")
