"""Optimizers by their names: how much each keeps for a parameter is torch's own code's."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from fsdp_migrate import words
from fsdp_migrate.errors import ConfigError


if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn
    from torch.optim import Optimizer


OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "sgd": partial(torch.optim.SGD, lr=1e-3),
    "sgd-momentum": partial(torch.optim.SGD, lr=1e-3, momentum=0.9),
}


def named_optimizer(name: str) -> Callable[[nn.Module], Optimizer]:
    """Return a function of a model that makes the optimizer of that name.

    Raises:
        ConfigError: There is none of that name.

    Example:
        >>> type(named_optimizer("sgd")(torch.nn.Linear(1, 1))).__name__
        'SGD'
    """
    if name not in OPTIMIZERS:
        near = words.closest(name, list(OPTIMIZERS))
        msg = (
            f"`optimizer` is {name!r}, which is not known.{near} Known: {', '.join(OPTIMIZERS)}. For another "
            "one name a function of the model that makes it: `package.module:function`."
        )
        raise ConfigError(msg, field="optimizer")
    maker: Any = OPTIMIZERS[name]
    return lambda model: maker([each for each in model.parameters() if each.requires_grad])
