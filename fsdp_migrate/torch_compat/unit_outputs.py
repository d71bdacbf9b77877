"""Units that return objects which torch's pytrees do not look into, such as dataclasses.

A part of :mod:`fsdp_migrate.torch_compat`, and under its rule: no other file asks which torch this is or
touches its privates. What is replaced here was checked on 2.6, 2.7, 2.13 and 2.15.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.fsdp._fully_shard import _fsdp_state
from torch.utils._pytree import tree_leaves


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def hook_all_outputs(states: Iterable[Any]) -> None:
    """Let backward gather a unit wherever its output stands in what the unit returns, as FSDP1 did.

    FSDP2 hooks the tensors that it finds. Before it looked into dataclasses itself, backward did not gather a
    unit that returns one, and failed.
    """
    if hasattr(_fsdp_state, "collect_grad_tensors"):
        return
    for state in states:
        state._register_pre_backward_hook = partial(_hook, state, state._register_pre_backward_hook)


def _hook(state: Any, as_torch_does: Any, output: Any) -> Any:
    result = as_torch_does(output)
    if torch.is_grad_enabled():
        # What torch's own hook has found: a second hook on it would begin the unit's backward twice.
        found = {id(leaf) for leaf in tree_leaves(output)}
        for tensor in tensors_in(output):
            if tensor.requires_grad and id(tensor) not in found:
                found.add(id(tensor))
                tensor.register_hook(state._pre_backward)
    return result


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in containers and dataclasses."""
    if isinstance(value, torch.Tensor):
        yield value
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from tensors_in(getattr(value, field.name, None))
    elif isinstance(value, dict):
        for each in value.values():
            yield from tensors_in(each)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for each in value:
            yield from tensors_in(each)
