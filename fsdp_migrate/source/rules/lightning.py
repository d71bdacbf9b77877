"""Lightning's ``FSDPStrategy`` is FSDP1's; ``ModelParallelStrategy`` is the one for FSDP2.

https://lightning.ai/docs/pytorch/stable/advanced/model_parallel/tp_fsdp.html
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.nodes import dotted
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "lightning"
CODES = ("FM319",)

_MEANT = (
    "take ModelParallelStrategy, and call prepare_fully_shard(self, {...}) in the module's configure_model, "
    "with the arguments that stand here."
)
_FABRIC = (
    "take ModelParallelStrategy(parallelize_fn=...), and call prepare_fully_shard(model, {...}) in that "
    "function, with the arguments that stand here."
)
_ASKED = (
    "this asks for Lightning's FSDP1 strategy: ask for ModelParallelStrategy, and see what depends on it."
)
_CLASS = re.compile(
    r"^(lightning|pytorch_lightning|lightning_fabric|lightning\.(pytorch|fabric))\..*\b"
    r"(DDPFullyShardedNativeStrategy|FSDP(Strategy|Precision|MixedPrecisionPlugin|PrecisionPlugin))\b"
)
_WORD = re.compile(r"^fsdp(_native|_cpu_offload|_native_full_shard_offload)?$")


def find(source: Source) -> Iterator[Found]:
    """Find the strategy, by its class and by its name."""
    for node in (*source.loads, *source.attributes):
        names = {name for name in source.index.qualified(node) if _CLASS.match(name)}
        if names:
            above = source.index.parents[node]
            if not (isinstance(above, cst.Attribute) and above.value is node):
                yield Found("FM319", node, _meant(source, node, names), "commented")
    for call in source.calls:
        name = (dotted(call.func) or "").split(".")[-1]
        if name in {"Fabric", "Trainer"}:
            for arg in call.args:
                if arg.keyword is not None and arg.keyword.value == "strategy" and _is_word(arg.value):
                    yield Found("FM319", arg, _FABRIC if name == "Fabric" else _MEANT, "commented")


def _meant(source: Source, node: cst.CSTNode, names: set[str]) -> str:
    for above in source.index.ancestors(node):
        if isinstance(above, cst.Annotation):
            return _ASKED
        if isinstance(above, cst.Call):
            asks = dotted(above.func) in {"isinstance", "issubclass"} and node is not above.func
            if asks:
                return _ASKED
            break
    return _FABRIC if any("fabric" in name for name in names) else _MEANT


def _is_word(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.SimpleString) and bool(_WORD.match(str(node.evaluated_value)))
