"""Models that stay FSDP1's, where the functions of this package are given them: FSDP1 does the work itself.

A project may have a branch for each of both, or get its model from another package. What is called beside it
is the same for both then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel,
    StateDictType,
)


if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager
    from typing import TypeGuard

    from torch import nn
    from torch.optim import Optimizer


def is_fsdp1(model: object) -> TypeGuard[FullyShardedDataParallel]:
    """Tell whether an object is a model in FSDP1's wrapper."""
    return isinstance(model, FullyShardedDataParallel)


def holds_fsdp1(model: nn.Module) -> bool:
    """Tell whether a module is in FSDP1's wrapper, or holds units of FSDP1's, as Fabric's module does."""
    return any(map(is_fsdp1, model.modules()))


def whole_states(
    model: FullyShardedDataParallel, optimizer: Optimizer | None, *, rank0_only: bool, offload_to_cpu: bool
) -> dict[str, Any]:
    """Return the whole state of FSDP1's model, and of its optimizer; nothing on ranks that want none."""
    # On the CPU torch's own offloading reads memory that is free already, and the process dies.
    is_moved = offload_to_cpu and model.compute_device != torch.device("cpu")
    how = {"rank0_only": rank0_only, "offload_to_cpu": is_moved}
    configs = FullStateDictConfig(**how), FullOptimStateDictConfig(**how)
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT, *configs):
        state: dict[str, Any] = {"model": model.state_dict()}
        if optimizer is not None:
            state["optimizer"] = FullyShardedDataParallel.optim_state_dict(model, optimizer)
    return state if state["model"] else {}


def load_whole(model: FullyShardedDataParallel, state: Mapping[str, Any], *, strict: bool) -> Any:
    """Load a full state that every rank has into FSDP1's model."""
    with _of_whole_states(model):
        return model.load_state_dict(dict(state), strict=strict)


def optimizer_state_to_load(
    model: FullyShardedDataParallel, optimizer: Optimizer, state: Mapping[str, Any], *, from_rank0: bool
) -> dict[str, Any]:
    """Return a full optimizer state in the form that the optimizer of FSDP1's model loads."""
    with _of_whole_states(model, from_rank0=from_rank0):
        loaded = FullyShardedDataParallel.optim_state_dict_to_load(
            model, optim=optimizer, optim_state_dict=dict(state)
        )
    return dict(loaded)


def _of_whole_states(
    model: FullyShardedDataParallel, *, from_rank0: bool = False
) -> AbstractContextManager[Any]:
    configs = FullStateDictConfig(), FullOptimStateDictConfig(rank0_only=from_rank0)
    context: AbstractContextManager[Any] = FullyShardedDataParallel.state_dict_type(
        model, StateDictType.FULL_STATE_DICT, *configs
    )
    return context
