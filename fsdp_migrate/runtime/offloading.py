"""``offloaded``: a model and its optimizers in host memory for a while, and back as they were."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from fsdp_migrate.arguments import FLAG, check_arguments
from fsdp_migrate.errors import ModelError, ModelStateError
from fsdp_migrate.findings import counted
from fsdp_migrate.runtime.sharded import show_shards, units_of
from fsdp_migrate.runtime.state_dicts import check_owners
from fsdp_migrate.sharding.optimizers import as_list
from fsdp_migrate.sharding.tying import parameter_names
from fsdp_migrate.torch_compat import devices, param_groups
from fsdp_migrate.torch_compat.tensor_kinds import dense_parts, follow_parts, map_leaves


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torch import nn
    from torch.optim import Optimizer


@contextmanager
def offloaded(
    model: nn.Module,
    optimizers: Optimizer | Iterable[Optimizer] | None = None,
    *,
    pin_memory: bool = True,
) -> Iterator[None]:
    """Keep a model and its optimizers in host memory in a context, so that others have the device's.

    For the phases of reinforcement learning in which an inference engine has the device. In the context the
    memory of parameters, gradients, buffers and optimizer states is on the host, and what it took of the
    device is free, also for other processes. Afterwards, and after an error, everything is on the device
    again, bit for bit: the same objects, with the same placements, views and ``requires_grad``.

    In the context values can be read: :func:`~fsdp_migrate.runtime.full_state_dict`, checkpoints and
    :func:`~fsdp_migrate.runtime.named_full_tensors`, which gathers on the device a bucket at a time. What is
    written in place is kept; load states before it or after it. A forward of the model and a step of its
    optimizers are errors. Views of parameters that you hold yourself have no memory meanwhile: do not read
    them. Gradients that wait for a reduction (``no_sync``), and memory that torch cannot free (of files, of
    other processes), stay on the device.

    Nothing is communicated; each rank does it by itself. What is on the CPU already stays: models with CPU
    offload, models on a CPU, what an outer ``offloaded`` has moved. Afterwards tensors have other addresses
    on the device, so a CUDA graph that was captured before must be captured again.

    Args:
        model: A sharded model, or any other, between steps.
        optimizers: Its optimizer, or several, whose states are moved too.
        pin_memory: Take pinned host memory where there is an accelerator: copies are several times as fast.
            torch rounds each piece up to a power of two, and keeps the memory for later.

    Raises:
        ModelError: A parameter is on the meta device.
        ModelStateError: A forward or backward is under way, or starts in the context; an optimizer makes a
            step in the context; or the device has too little memory when the context ends: what was not
            moved back can then still be read, and saved.
        OptimizerError: An optimizer holds parameters that are not the model's.

    Example:
        >>> model = torch.nn.Linear(2, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with offloaded(model, optimizer):
        ...     model.weight.device
        device(type='cpu')
    """
    check_arguments(FLAG, pin_memory=pin_memory)
    several = as_list(optimizers)
    show_shards(model, "offloaded")
    names = parameter_names(model)
    check_owners(several, names)
    meta = [every[0] for param, every in names.items() if param.is_meta]
    if meta:
        msg = (
            f"`offloaded` was called with a model on the meta device: `{meta[0]}` has no values to move. "
            "Give the parameters memory first, as prepare_fully_shard does."
        )
        raise ModelError(msg, fqn=meta[0])
    tensors = _tensors(model, several)
    memories = _memories(tensors)
    kinds = sorted({memory.device.type for memory in memories})
    pins = bool(pin_memory) and devices.accelerator_type() is not None
    guards = ExitStack()
    try:
        _move(memories, kinds, lambda memory: memory.to_host(pin=pins))
        _follow(tensors)
        if memories:
            _refuse_use(model, several, guards)
        yield
    finally:
        try:
            _bring_back(memories, kinds)
        finally:
            _follow(tensors)
        guards.close()  # they stay where something is on the host still


@dataclass
class _Memory:
    """A piece of device memory, the tensors that lie in it, and its bytes while they are on the host."""

    on_device: torch.UntypedStorage
    device: torch.device
    tensors: list[torch.Tensor] = field(default_factory=list)
    host: torch.Tensor | None = None

    def to_host(self, *, pin: bool) -> None:
        num_bytes = self.on_device.nbytes()
        host = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=pin)
        host.copy_(_bytes_of(self.on_device), non_blocking=pin)
        self.host = host
        for tensor in self.tensors:
            _lay(tensor, host.untyped_storage())
        # Not only dropped: FSDP2 and autograd hold other tensors in the same memory.
        self.on_device.resize_(0)

    def to_device(self) -> None:
        if self.host is None:
            return
        host = self.host.untyped_storage()
        self.on_device.resize_(host.nbytes())
        _bytes_of(self.on_device).copy_(self.host, non_blocking=True)
        for tensor in self.tensors:
            # What was given other memory in the context keeps that.
            if tensor.untyped_storage().data_ptr() == host.data_ptr():
                _lay(tensor, self.on_device)
        self.host = None


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _lay(tensor: torch.Tensor, storage: torch.UntypedStorage) -> None:
    """Let a tensor, the same object, look at the same place of another memory."""
    place = (tensor.storage_offset(), tensor.size(), tensor.stride())
    tensor.data = torch.empty(0, dtype=tensor.dtype, device=storage.device).set_(storage, *place)


def leaves_the_device(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor is moved: it is on a device, and its memory is torch's to free."""
    return tensor.device.type not in {"cpu", "meta"} and tensor.untyped_storage().resizable()


def _memories(tensors: Iterable[torch.Tensor]) -> list[_Memory]:
    """Return what memory the tensors lie in, each piece once, however many of them share it."""
    found: dict[int, _Memory] = {}
    for tensor in {id(part): part for each in tensors for part in dense_parts(each)}.values():
        storage = tensor.untyped_storage() if leaves_the_device(tensor) else None
        if storage is not None and storage.nbytes():
            memory = found.setdefault(storage.data_ptr(), _Memory(storage, tensor.device))
            memory.tensors.append(tensor)
    return list(found.values())


def _tensors(model: nn.Module, optimizers: list[Optimizer]) -> list[torch.Tensor]:
    """Return all that a model and its optimizers keep; tensors that share memory are among them."""
    found: list[torch.Tensor] = [*model.buffers()]
    for param in model.parameters():
        found += [param] if param.grad is None else [param, param.grad]
    for group in param_groups.parameter_groups(model):
        found += group.flat_shards

    def collect(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            found.append(value)
        return value

    for optimizer in optimizers:
        map_leaves(collect, list(optimizer.state.values()))
        # Settings can be tensors as well, such as a learning rate.
        map_leaves(collect, [{**group, "params": []} for group in optimizer.param_groups])
    return found


def _move(memories: list[_Memory], kinds: list[str], move: Callable[[_Memory], None]) -> None:
    """Copy everything one way, in the device's own time, and wait for the end of it."""
    for kind in kinds:
        devices.synchronize(kind)  # streams of FSDP2's may be reading still
    for memory in memories:
        move(memory)
    for kind in kinds:
        devices.synchronize(kind)
        devices.release_cached(kind)


def _follow(tensors: list[torch.Tensor]) -> None:
    for tensor in tensors:
        follow_parts(tensor)


def _bring_back(memories: list[_Memory], kinds: list[str]) -> None:
    try:
        _move(memories, kinds, _Memory.to_device)
    except (MemoryError, RuntimeError) as error:  # torch's OutOfMemoryError is a RuntimeError
        left = [memory for memory in memories if memory.host is not None]
        num_bytes = sum(memory.host.nbytes for memory in left if memory.host is not None)
        msg = (
            f"`offloaded` could not bring everything back to the device: {num_bytes:,} bytes, in "
            f"{counted(len(left), 'piece')}, are still on the host ({error}). They can be read and "
            "saved, not trained with. Let the "
            "inference engine free its memory before the context ends."
        )
        raise ModelStateError(msg) from error


def _refuse_use(model: nn.Module, optimizers: list[Optimizer], guards: ExitStack) -> None:
    """Make forwards of the model and its units, and steps, errors while nothing is on the device."""

    def refuse(what: str) -> None:
        msg = (
            f"{what} in `offloaded`, in which the model and its optimizers are in host memory. Do it before "
            "the context or after it."
        )
        raise ModelStateError(msg)

    def forward(module: nn.Module, args: object) -> None:
        del args
        refuse(f"The forward of a {type(module).__name__} was called")

    def step(optimizer: Optimizer, args: object, kwargs: object) -> None:
        del args, kwargs
        refuse(f"A step of {type(optimizer).__name__} was made")

    modules: list[Any] = list(dict.fromkeys([model, *units_of(model)]))
    for module in modules:
        guards.callback(module.register_forward_pre_hook(forward, prepend=True).remove)
    for optimizer in optimizers:
        if hasattr(optimizer, "register_step_pre_hook"):
            guards.callback(optimizer.register_step_pre_hook(step).remove)
