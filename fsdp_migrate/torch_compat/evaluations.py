"""Units show their shards again when an evaluation ends, as FSDP1's did: what is written to them counts.

A part of :mod:`fsdp_migrate.torch_compat`, and under its rule: no other file asks which torch this is or
touches its privates. What is read here was checked on 2.6, 2.7 and 2.13.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fsdp_migrate.torch_compat.unit_outputs import tensors_in
from fsdp_migrate.torch_compat.whole_units import is_whole


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import nn


def show_shards_after_evaluations(model: nn.Module, groups: Iterable[Any]) -> None:
    """Shard a model again after a forward that no backward can follow, where that is not asked to be kept.

    FSDP2's root, and units over one rank, stay gathered until a backward. A script that goes through
    parameters then (an average of weights, a target network) met whole tensors, wrote to what was lost at the
    next gather, or mixed them with DTensors. FSDP1 showed shards. Under SHARD_GRAD_OP all stay as they are,
    which that is chosen for: else each step of a generation would gather the whole model.
    """
    # Asked before the first forward, which makes the root one that is not sharded again.
    again = [group for group in groups if group.post_forward_mesh_info is not None or is_whole(group)]

    def show(module: nn.Module, args: Any, output: Any) -> None:
        del module, args
        if torch.is_grad_enabled():
            return
        idle = [group for group in again if group._training_state.name == "IDLE" and group.is_unsharded]
        given = {_memory(each) for each in tensors_in(output)} if idle else set()
        # What the forward gives of its parameters themselves has to stay.
        for group in (each for each in idle if given.isdisjoint(_gathered(each))):
            group._to_sharded()

    if again:  # after FSDP2's own hook, which ends the forward
        model.register_forward_hook(torch.compiler.disable(show))


def _gathered(group: Any) -> Iterator[int]:
    for param in group.fsdp_params:
        yield _memory(param._unsharded_param)
        yield from map(_memory, param.all_gather_outputs)


def _memory(tensor: torch.Tensor) -> int:
    """Return where a tensor's numbers lie; of tensors that hold others a number of their own."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):
        return -id(tensor)
