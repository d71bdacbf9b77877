"""Units that run first under ``torch.inference_mode``: an evaluation before the first step.

A part of :mod:`fsdp_migrate.torch_compat`, and under its rule: no other file asks which torch this is or
touches its privates. What is replaced here was checked on 2.6, 2.7, 2.13 and 2.15.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


_MAKE_TENSORS = ("lazy_init", "unshard", "wait_for_unshard")


def gather_outside_inference(groups: Iterable[Any]) -> None:
    """Make the tensors that FSDP2 keeps of a unit ordinary ones, in whatever mode the unit runs first.

    FSDP2 makes them in a unit's first forward and writes into them at each gather. Made under inference mode
    they can only be written under it, so that the first training step after it fails. FSDP1 made its own in
    the constructor.
    """
    for group in groups:
        for name in _MAKE_TENSORS:
            setattr(group, name, partial(_run_outside, getattr(group, name)))


def _run_outside(method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not torch.is_inference_mode_enabled():
        return method(*args, **kwargs)
    with torch.inference_mode(mode=False):
        return method(*args, **kwargs)
