"""Lightning's process group beside CPU offload: FSDP2's gradients are on the CPU, where NCCL reduces none.

FSDP1 reduced their norm on the GPU. Lightning makes the group with NCCL alone, unless its strategy is told
(``fabric/utilities/distributed.py``); ``tests/frameworks/test_lightning_claims.py`` holds that against it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from fsdp_migrate import words
from fsdp_migrate.adapters.document.nodes import holds_reference


if TYPE_CHECKING:
    from collections.abc import Mapping


KEY: Final = "process_group_backend"
WITH_GLOO: Final = "cpu:gloo,cuda:nccl"
REASON: Final = (
    "FSDP2's gradients are on the CPU, where clipping and saving reduce them, and NCCL alone cannot "
    "(`No backend type associated with device type cpu`); FSDP1 did that on the GPU"
)


def group_of_offload(arguments: Mapping[str, Any], *, offloads: bool) -> str | None:
    """Return the backend that a strategy has to ask for where it offloads; None where it needs no other.

    FSDP1's strategy runs on GPUs alone: Lightning refuses it elsewhere.

    Args:
        arguments: Those of ``FSDPStrategy``.
        offloads: Whether it is known to offload. What is only known when it runs may.

    Example:
        >>> group_of_offload({}, offloads=True), group_of_offload({KEY: "gloo"}, offloads=True)
        ('cpu:gloo,cuda:nccl', None)
    """
    own = arguments.get(KEY)
    may_offload = offloads or holds_reference(arguments.get("cpu_offload"))
    return WITH_GLOO if may_offload and (words.is_nothing(own) or own == "nccl") else None
