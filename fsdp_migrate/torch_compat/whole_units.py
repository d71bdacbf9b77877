"""Units whose parameters are whole on every rank: shown whole from a forward's begin to the backward's end.

A part of :mod:`fsdp_migrate.torch_compat`, and under its rule: no other file asks which torch this is or
touches its privates. What is read here was checked on 2.6, 2.7, 2.13 and 2.15.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch


if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn


def show_whole_units(model: nn.Module, groups: Iterable[Any]) -> None:
    """Gather the units that nothing is sharded of when the model's forward begins, and not when theirs do.

    Under NO_SHARD, FSDP1's parameters were whole at all times. So a model may use a unit's parameters without
    calling it, as ``nn.MultiheadAttention`` does with its ``out_proj``. Nothing is sent for it.
    """
    whole = [group for group in groups if is_whole(group)]

    def show(module: nn.Module, args: Any) -> None:
        del module, args
        for group in whole:
            group.unshard(False)
            group.wait_for_unshard()

    if whole:  # after FSDP2's own hook, which makes groups ready
        model.register_forward_pre_hook(torch.compiler.disable(show))


def is_whole(group: Any) -> bool:
    """Tell whether one rank has all of a unit's parameters, and keeps them gathered after a forward."""
    return group.post_forward_mesh_info is None and getattr(group.mesh_info, "shard_mesh_size", 1) == 1
