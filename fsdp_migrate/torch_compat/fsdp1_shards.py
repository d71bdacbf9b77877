"""FSDP1's parameters, gathered beside it: torch's own way to show them changes the run that is looked at.

``FSDP.summon_full_params`` frees what a unit has gathered in low precision, and a run goes on by just that:
after an evaluation FSDP1's root keeps what it gathered, through the optimizer's step. Here the ranks' shards
are copied and gathered, and the whole is taken apart as FSDP1 does it; nothing of FSDP1's is written.

A part of :mod:`fsdp_migrate.torch_compat`, and under its rule: no other file asks which torch this is
or touches its privates. What the handle and the flat parameter say is held by tests on torch 2.7 and 2.13.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FlatParameter, FullyShardedDataParallel


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn


def named_whole_parameters(
    model: nn.Module, keep: Callable[[torch.Tensor], torch.Tensor]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield each parameter of a model of FSDP1, whole, under the name that the model has for it.

    The names are those of ``summon_full_params``, in the order of the modules, with every name of what is
    tied; parameters that no unit holds are among them. ``keep`` makes of what was gathered what is yielded,
    one unit after the other, so that no more than one lies in the device's memory.

    All ranks must call it, between forward and backward or outside of them. It changes nothing.

    Example:
        >>> layer = torch.nn.Linear(3, 2)  # a model of no units has parameters, too
        >>> [name for name, _ in named_whole_parameters(layer, torch.clone)]
        ['weight', 'bias']
    """
    units = [each for each in model.modules() if isinstance(each, FullyShardedDataParallel)]
    held: dict[int, dict[str, torch.Tensor]] = {}
    # Several units may have one handle, where they wrap what others wrap already.
    handles = {id(handle): handle for each in units if (handle := each._handle) is not None}
    for handle in handles.values():
        _hold(handle, held, keep)
    for prefix, module in model.named_modules(remove_duplicate=False):
        own = held.get(id(module), {})
        dot = f"{prefix}." if prefix else ""
        for name, tensor in own.items():
            yield f"{dot}{name}", tensor
        for name, param in module._parameters.items():
            if param is not None and name not in own and not isinstance(param, FlatParameter):
                yield f"{dot}{name}", keep(param)


@torch.no_grad()
def _hold(
    handle: Any, held: dict[int, dict[str, torch.Tensor]], keep: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """Gather what a handle shards, by the modules that have it and its names there."""
    flat = handle.flat_param
    for view, (name, module, _) in zip(
        handle._get_unflat_views(_whole(handle)), flat._param_infos, strict=True
    ):
        held.setdefault(id(module), {})[name] = keep(view)
    for name, module, _, first_name, first_module, _ in flat._shared_param_infos:
        held.setdefault(id(module), {})[name] = held[id(first_module)][first_name]


def _whole(handle: Any) -> torch.Tensor:
    shard = _own_shard(handle)
    if not handle.uses_sharded_strategy:
        return shard
    # NCCL gathers on its device alone, and with CPU offload the shard is not there.
    shard = shard.to(handle.device)
    ranks = dist.get_world_size(handle.process_group)
    gathered = shard.new_empty(ranks * shard.numel())
    dist.all_gather(list(gathered.chunk(ranks)), shard, group=handle.process_group)
    return gathered[: handle.flat_param._unpadded_unsharded_size.numel()]


def _own_shard(handle: Any) -> torch.Tensor:
    """Return a copy of this rank's shard in the parameters' own precision, as it would be gathered now."""
    flat = handle.flat_param
    # While something is gathered the flat parameter shows that, and keeps its shard beside it; before the
    # first forward it is the shard itself, and there is nothing beside it.
    is_shard = not handle.uses_sharded_strategy or flat.size() == flat._sharded_size
    shard: torch.Tensor = (flat if is_shard else flat._local_shard).detach().clone()
    if flat._params is None or handle._skipped_use_sharded_views:
        return shard
    # What a script put in a parameter's place (`param.data = ...`), FSDP1 takes at the next forward.
    parts = zip(flat._params, flat._shard_param_infos, flat._param_infos, strict=True)
    for param, place, (name, module, _) in parts:
        shown = getattr(module, name, param)
        if not place.in_shard or shown.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr():
            continue
        if shown.numel() == place.numel_in_shard:
            shard[place.offset_in_shard :][: place.numel_in_shard].copy_(shown.detach().reshape(-1))
    return shard
