"""A run that takes no memory and no other process: fake tensors, and a process group that sends nothing.

A part of :mod:`fsdp_migrate.torch_compat`, and under its rule: no other file asks which torch this is or
touches its privates. ``FakeTensorMode`` and the backend ``fake`` are in 2.6 to 2.15, under these names.
"""

from __future__ import annotations

import copy
import importlib
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from fsdp_migrate.torch_compat.cpu_mends import mend_replicas_on_cpu
from fsdp_migrate.torch_compat.process_groups import end_process_group


if TYPE_CHECKING:
    from collections.abc import Iterator


ModelT = TypeVar("ModelT", bound=nn.Module)


@contextmanager
def fake_world(world_size: int) -> Iterator[None]:
    """Be rank 0 of so many ranks, of which there is no other: collectives return at once."""
    # Either module registers what it is named after: the backend, and what collectives do to fake tensors.
    importlib.import_module("torch.testing._internal.distributed.fake_pg")
    importlib.import_module("torch.distributed._tools.fake_collectives")
    # What mends gloo looks for groups of gloo, and the backend `fake` is none. But the CPU's missing event,
    # on which torch 2.6 and 2.7 insist for replicas, is met here too.
    mend_replicas_on_cpu()
    dist.init_process_group("fake", store=dist.HashStore(), rank=0, world_size=world_size)
    try:
        with _fsdp1_on_fakes(), warnings.catch_warnings():
            # FSDP1 compares the addresses of its flat parameters, and fake ones have none.
            warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
            yield
    finally:
        end_process_group()


def make_fake_mode() -> Any:
    """Return the context in which tensors are made fake; real ones that meet fake ones become so too."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def fake_copy(model: ModelT, mode: Any) -> ModelT:
    """Return a copy of a model, on any device, whose parameters and buffers are fake ones on the CPU."""
    tensors = {id(each): each for each in (*model.parameters(), *model.buffers())}
    # What stands in the memo counts as copied: no number is read, and ties stay ties.
    return copy.deepcopy(model, {key: _fake(each, mode) for key, each in tensors.items()})


def _fake(tensor: torch.Tensor, mode: Any) -> torch.Tensor:
    with mode:
        made = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu")
        if isinstance(tensor, nn.Parameter):
            made = nn.Parameter(made, requires_grad=tensor.requires_grad)
    vars(made).update(vars(tensor))  # marks that users and frameworks hang on parameters
    return made


@contextmanager
def _fsdp1_on_fakes() -> Iterator[None]:
    """Let FSDP1 tell storages apart that have no address."""
    flat_param: Any = importlib.import_module("torch.distributed.fsdp._flat_param")
    names = ("_same_storage", "_data_ptr_allocated")
    before = [getattr(flat_param, name) for name in names]

    def same_storage(one: torch.Tensor, other: torch.Tensor) -> bool:
        return bool(one.untyped_storage()._cdata == other.untyped_storage()._cdata)

    def is_allocated(tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage().nbytes() > 0

    for name, function in zip(names, (same_storage, is_allocated), strict=True):
        setattr(flat_param, name, function)
    try:
        yield
    finally:
        for name, function in zip(names, before, strict=True):
            setattr(flat_param, name, function)
