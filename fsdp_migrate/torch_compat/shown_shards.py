"""Units are sharded again after a forward that no backward follows: what a script sees is what there is.

A part of :mod:`fsdp_migrate.torch_compat`, and under its rule: no other file asks which torch this is or
touches its privates. What is read here was checked on 2.6, 2.7, 2.11 and 2.13.
"""

# A unit that is not sharded again after its forward (the root; each under SHARD_GRAD_OP and NO_SHARD) shows
# what it has gathered until a backward has gone through it. What a script writes into that is lost with it,
# and what it writes into the shards meanwhile is not computed with. Only to gather again at each forward is
# safe: writes by `.data` leave no trace that could be asked for.

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fsdp_migrate.torch_compat.unit_outputs import tensors_in


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


_KEPT = "_fsdp_migrate_is_kept_whole"


def shard_after_evaluation(states: Sequence[Any], groups: Iterable[Any]) -> None:
    """Shard units again after each forward without gradients, or of a model of which nothing is trained.

    FSDP1 showed its shards after each forward. Units that a script has gathered itself, by ``unshard()``,
    stay whole until it calls ``reshard()``: so those of SHARD_GRAD_OP are gathered once for many forwards.
    """
    every = list(groups)
    for group in every:
        _note_who_gathers(group)
    for state in states:
        _call_after_forwards(state, every)


def gather_for_forward(group: Any) -> None:
    """Gather a unit as its own forward does, not as a script that asks for its weights."""
    was_kept = getattr(group, _KEPT, False)
    group.unshard(False)
    group.wait_for_unshard()
    setattr(group, _KEPT, was_kept)


def _note_who_gathers(group: Any) -> None:
    unshard, to_sharded = group.unshard, group._to_sharded

    def noted(*args: Any, **kwargs: Any) -> Any:
        if group._training_state.name == "IDLE":  # neither its forward or backward, nor another's prefetch
            setattr(group, _KEPT, True)
        return unshard(*args, **kwargs)

    def forgotten() -> None:
        setattr(group, _KEPT, False)
        to_sharded()

    group.unshard, group._to_sharded = noted, forgotten


def _call_after_forwards(state: Any, groups: Sequence[Any]) -> None:
    def shard(output: Any) -> None:
        if state._state_ctx.iter_forward_root is not None:
            return  # the forward of what is around it goes on
        if torch.is_grad_enabled() and any(map(_is_trained, groups)):
            return
        again = [group for group in groups if not group.is_sharded and not getattr(group, _KEPT, False)]
        given = {_memory(each) for each in tensors_in(output)} if again else set()
        for group in again:
            if given.isdisjoint(_gathered(group)):  # else the forward has returned a parameter itself
                group.reshard()

    def hook(module: Any, args: Any, output: Any) -> None:
        del module, args
        shard(output)

    post_forward = state._post_forward

    def post_forward_of_method(*args: Any, **kwargs: Any) -> Any:
        output = post_forward(*args, **kwargs)
        shard(output)
        return output

    for module in state._modules:  # after FSDP2's own hook
        module.register_forward_hook(torch.compiler.disable(hook))
    # FSDP2's hooks hold torch's own; the methods of `register_fsdp_forward_method` ask the state each time.
    state._post_forward = post_forward_of_method


def _is_trained(group: Any) -> bool:
    return any(param.sharded_param.requires_grad for param in group.fsdp_params)


def _gathered(group: Any) -> Iterator[int]:
    for param in group.fsdp_params:
        yield from map(_memory, (param._unsharded_param, *param.all_gather_outputs))


def _memory(tensor: torch.Tensor) -> int:
    """Return where a tensor's numbers lie; of tensors that hold others a number of their own."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):
        return -id(tensor)
