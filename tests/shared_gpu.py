"""A process group whose ranks share one GPU.

NCCL refuses two ranks on a device, and under gloo FSDP2 crashes there (torch 2.11). Here a collective waits
for the device, goes over gloo in host memory, and copies back: a rank gets what NCCL would give it, averages
included, at 2 ranks bit for bit. Once this module is imported it is a backend by the name ``shared_gpu``.
"""
# mypy: disable-error-code="assignment, attr-defined, call-arg, override"
# torch's stubs know neither what ranks call on a group of their own nor gloo's methods.

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceOptions,
    BarrierOptions,
    ProcessGroupGloo,
    _create_work_from_future,
)
from torch.futures import Future


if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta


def _done(result: Any) -> Any:
    future: Future[Any] = Future()
    future.set_result(result)
    return _create_work_from_future(future)


def _in_host_memory(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return copies, which follow each other in memory and in time."""
    return [tensor.detach().to("cpu", copy=True).contiguous() for tensor in tensors]


def _copy_back(tensors: list[torch.Tensor], found: list[torch.Tensor]) -> None:
    with torch.no_grad():
        for tensor, value in zip(tensors, found, strict=True):
            tensor.detach().copy_(value.view(tensor.shape))


class SharedGPU(dist.ProcessGroup):
    """The group of one rank; what torch calls on it has torch's names, those up to 2.12 and those since."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._gloo = ProcessGroupGloo(store, rank, size, timeout)
        self._size = size
        for device in ("cpu", "cuda"):  # whoever asks which devices the group is for
            self._register_backend(torch.device(device), dist.ProcessGroup.BackendType.CUSTOM, self._gloo)

    def size(self) -> int:
        return self._size

    def getBackendName(self) -> str:  # noqa: N802 - torch's own name
        return "shared_gpu"

    @property
    def pg_name(self) -> str:
        names: dict[Any, str] = dist.distributed_c10d._world.pg_names
        return names[self]

    @property
    def group_name(self) -> str:
        return self.pg_name

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        operation = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        for tensor in tensors:
            _copy_back([tensor], [self._reduced(tensor, operation)])
        return _done(tensors)

    allreduce_coalesced = allreduce

    def _reduced(self, tensor: torch.Tensor, operation: Any) -> torch.Tensor:
        """Return the sum, the average or the like over the ranks."""
        options = AllreduceOptions()
        is_average = operation == dist.ReduceOp.AVG
        options.reduceOp = dist.ReduceOp.SUM if is_average else operation
        (value,) = _in_host_memory([tensor])
        self._gloo.allreduce([value], options).wait()
        return value / self._size if is_average else value

    def _gathered(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        (value,) = _in_host_memory([tensor])
        every = [torch.empty_like(value) for _ in range(self._size)]
        self._gloo.allgather([every], [value], AllgatherOptions()).wait()
        return every

    def allgather(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None
    ) -> Any:
        del opts
        for output, value in zip(outputs, inputs, strict=True):
            _copy_back(output, self._gathered(value))
        return _done(outputs)

    def all_gather_single(self, output: torch.Tensor, value: torch.Tensor, opts: Any = None) -> Any:
        del opts
        _copy_back([output], [torch.cat([each.flatten() for each in self._gathered(value)])])
        return _done(output)

    def all_gather_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Any:
        for output, value in zip(outputs, inputs, strict=True):
            self.all_gather_single(output, value, opts)
        return _done(outputs)

    def reduce_scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any) -> Any:
        for output, values in zip(outputs, inputs, strict=True):
            self.reduce_scatter_single(output, torch.cat([value.flatten() for value in values]), opts)
        return _done(outputs)

    def reduce_scatter_single(self, output: torch.Tensor, value: torch.Tensor, opts: Any) -> Any:
        whole = self._reduced(value, opts.reduceOp).flatten()
        _copy_back([output], [whole.chunk(self._size)[self.rank()]])
        return _done(output)

    def reduce_scatter_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any
    ) -> Any:
        for output, value in zip(outputs, inputs, strict=True):
            self.reduce_scatter_single(output, value, opts)
        return _done(outputs)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> Any:
        values = _in_host_memory(tensors)
        self._gloo.broadcast(values, opts).wait()
        _copy_back(tensors, values)
        return _done(tensors)

    def scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any) -> Any:
        values = _in_host_memory(outputs)
        self._gloo.scatter(values, [_in_host_memory(each) for each in inputs], opts).wait()
        _copy_back(outputs, values)
        return _done(outputs)

    def gather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any) -> Any:
        values = [_in_host_memory(each) for each in outputs]
        self._gloo.gather(values, _in_host_memory(inputs), opts).wait()
        for output, value in zip(outputs, values, strict=True):
            _copy_back(output, value)
        return _done(outputs)

    def barrier(self, opts: Any = None) -> Any:
        del opts
        self._gloo.barrier(BarrierOptions()).wait()
        return _done(None)


def _create(store: Any, rank: int, size: int, timeout: timedelta) -> SharedGPU:
    return SharedGPU(store, rank, size, timeout)


_make: Callable[..., SharedGPU] = _create
dist.Backend.register_backend("shared_gpu", _make, devices=["cpu", "cuda"])
