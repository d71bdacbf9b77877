"""Gradients that add up without a reduction, and that ``zero_grad`` throws away, as FSDP1's were.

FSDP1 showed them as ``.grad``, where ``zero_grad`` finds them. FSDP2 keeps them apart until they are
reduced, and no optimizer reaches them: those of a batch that was thrown away, or of an epoch's last window,
came back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakSet

from fsdp_migrate.torch_compat.param_groups import parameter_groups
from fsdp_migrate.torch_compat.pending_gradients import drop_gradients
from fsdp_migrate.torch_compat.zeroed_gradients import tell_of_zero_grad


if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch
    from torch import nn


_adding_up: WeakSet[nn.Module] = WeakSet()


def forget_what_is_zeroed(model: nn.Module) -> None:
    """Let ``zero_grad`` of a model, and of its optimizers, drop the gradients that wait, from now on."""
    _adding_up.add(model)
    tell_of_zero_grad(_forget)


def _forget(zeroed: Iterable[torch.Tensor]) -> None:
    """Drop what waits for parameters whose gradients were zeroed."""
    ids = {id(param) for param in zeroed}
    for model in list(_adding_up):
        for group in parameter_groups(model):
            drop_gradients(group.parameters, ids)
