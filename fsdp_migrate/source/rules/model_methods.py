"""Other things that were done to an FSDP1 model: hooks, ``apply``, copies, checkpointing after wrapping."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "model-methods"
CODES = ("FM321", "FM322", "FM323", "FM324")

_METHODS = {
    "register_comm_hook": (
        "FM321",
        "FSDP2's hooks take other arguments: set_all_reduce_hook, set_custom_reduce_scatter of each unit.",
    ),
    "apply": (
        "FM322",
        (
            "FSDP1 showed whole parameters to the function, now it sees shards: call it in "
            "fsdp_migrate.runtime.summon_full_params(model)."
        ),
    ),
}
_FUNCTIONS = {
    "copy.deepcopy": (
        "FM323",
        (
            "an FSDP2 model cannot be copied: copy it before it is sharded, or take "
            "fsdp_migrate.runtime.clone_parameters(model)."
        ),
    ),
    "torch.distributed.algorithms._checkpoint.checkpoint_wrapper.apply_activation_checkpointing": (
        "FM324",
        (
            "checkpoint layers before the model is sharded: give prepare_fully_shard the same choice as "
            "activation_checkpointing=, which spares a second all-gather."
        ),
    ),
}


def find(source: Source) -> Iterator[Found]:
    """Find these calls, where the model is known to be FSDP1's."""
    for call in source.calls:
        func = call.func
        if isinstance(func, cst.Attribute) and func.attr.value in _METHODS:
            code, meant = _METHODS[func.attr.value]
            if source.models.certainty(func.value) is not None:
                yield Found(code, call, meant, "commented")
        for name in source.index.qualified(func) & set(_FUNCTIONS):
            first = call.args[0].value if call.args else None
            if first is not None and source.models.certainty(first) is not None:
                code, meant = _FUNCTIONS[name]
                yield Found(code, call, meant, "commented")
