"""Attributes that a project puts on parameters, such as ``weight.is_model_parallel``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn


if TYPE_CHECKING:
    from collections.abc import Mapping


_OF_STEPS = ("_acc_grad", "_in_backward_optimizers", "_optimizer_classes", "_optimizer_kwargs")
"""What torch puts on parameters that are stepped in backward, which is moved by itself."""


def carry_attributes(
    names: Mapping[nn.Parameter, tuple[str, ...]], sharded: Mapping[str, nn.Parameter]
) -> None:
    """Give the parameters of now the attributes that those of before had, as FSDP1 kept the parameters.

    Of tensor subclasses nothing is taken over: what they have as attributes is their data.

    Args:
        names: The parameters of before, with their names.
        sharded: The parameters of now, by name.
    """
    for param, (name, *_) in names.items():
        if type(param) is nn.Parameter and sharded[name] is not param:
            for key, value in vars(param).items():
                if not key.startswith(_OF_STEPS) and not hasattr(sharded[name], key):
                    setattr(sharded[name], key, value)


def carry_marks(one: nn.Parameter, other: nn.Parameter) -> None:
    """Give a parameter all that a project has put on another one that stands for the same."""
    for key, value in vars(one).items():
        if not key.startswith((*_OF_STEPS, "_is_param")):
            setattr(other, key, value)
