"""What a batch changes apart from the optimizer's step: gradients, buffers and random numbers, put back."""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING

import torch
from torch.distributed.tensor import DTensor

from fsdp_migrate.torch_compat.param_groups import parameter_groups


if TYPE_CHECKING:
    from torch import nn


class RandomNumbers:
    """Remembers where the random numbers of torch, Python and NumPy stand on this rank."""

    def __init__(self, device_type: str) -> None:
        self._device_type = device_type
        self._random = torch.get_rng_state()
        self._python_random = random.getstate()
        # Not imported for this: where nobody has, nobody draws from it.
        self._numpy_random = numpy.random.get_state() if (numpy := sys.modules.get("numpy")) else None
        self._device_random = (
            None if device_type == "cpu" else torch.get_device_module(device_type).get_rng_state()
        )

    def restore(self) -> None:
        """Go on from there."""
        torch.set_rng_state(self._random)
        random.setstate(self._python_random)
        if self._numpy_random is not None:
            sys.modules["numpy"].random.set_state(self._numpy_random)
        if self._device_random is not None:
            torch.get_device_module(self._device_type).set_rng_state(self._device_random)


class Rollback:
    """Remembers a model's state before a batch.

    Buffers are copied, and gradients where there are any; parameters are not, for only the optimizer changes
    them.
    """

    def __init__(self, model: nn.Module) -> None:
        groups = parameter_groups(model)
        sharded = [param for group in groups for param in group.sharded_parameters]
        self._gradients = [
            (param, param.grad, None if param.grad is None else _local(param.grad).clone())
            # Both: a unit that is gathered shows whole parameters, and what is ignored is in no unit.
            for param in dict.fromkeys([*sharded, *model.parameters()])
        ]
        self._buffers = [
            (module, name, buffer, buffer.detach().clone())
            for module in model.modules()
            for name, buffer in module.named_buffers(recurse=False)
        ]
        self._random = RandomNumbers(groups[0].device_type)

    @torch.no_grad()
    def restore(self) -> None:
        """Put gradients, buffers and the random numbers (of torch, Python and NumPy) back."""
        for param, grad, values in self._gradients:
            if grad is not None and values is not None:
                _local(grad).copy_(values)
            param.grad = grad
        for module, name, buffer, values in self._buffers:
            buffer.copy_(values)
            # A forward may have put another tensor in its place.
            setattr(module, name, buffer)
        self._random.restore()


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """Return what this rank holds of a tensor, without copying it."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
