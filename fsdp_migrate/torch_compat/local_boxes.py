"""Which part of a whole tensor this rank holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.distributed.tensor import DTensor

from fsdp_migrate.errors import UnsupportedFeatureError


if TYPE_CHECKING:
    import torch


def local_box(tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the offsets and sizes of this rank's part; of a plain tensor, all of it.

    ``DTensor.__create_chunk_list__`` is what torch's own planner asks, in 2.6 to 2.15. It knows the strided
    shards of FSDP over tensor parallelism, too.

    Raises:
        UnsupportedFeatureError: The part is in several pieces.
    """
    if not isinstance(tensor, DTensor):
        return (0,) * tensor.ndim, tuple(tensor.shape)
    chunks: list[Any] = tensor.__create_chunk_list__()  # type: ignore[no-untyped-call,unused-ignore]
    if len(chunks) != 1:
        msg = f"This rank holds {len(chunks)} pieces of a tensor of shape {list(tensor.shape)}; expected one."
        raise UnsupportedFeatureError(msg, feature="shards in several pieces")
    return tuple(chunks[0].offsets), tuple(chunks[0].sizes)
