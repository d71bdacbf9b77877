"""What a real sharded model holds and communicates, to hold the plan's numbers against."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from fsdp_migrate.sharding.prepare import prepare_fully_shard, shard_plan
from tests.models import Net, batch, loss_of


if TYPE_CHECKING:
    from collections.abc import Callable


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "FULL_SHARD": dict,
    "SHARD_GRAD_OP": lambda: {"sharding_strategy": "SHARD_GRAD_OP"},
    "bf16": lambda: {"mixed_precision": {"param_dtype": "bf16", "reduce_dtype": "fp32"}},
    "NO_SHARD": lambda: {"sharding_strategy": "NO_SHARD"},
    "HYBRID_SHARD": lambda: {
        "sharding_strategy": "HYBRID_SHARD",
        "device_mesh": init_device_mesh("cpu", (2, dist.get_world_size() // 2)),
    },
}


class _Counting(TorchDispatchMode):
    """Adds up the bytes of the collectives: an all-gather's output, a reduce-scatter's input."""

    KINDS: ClassVar[dict[str, tuple[str, int]]] = {
        "c10d::_allgather_base_": ("all_gathered_per_step", 0),
        "c10d::_reduce_scatter_base_": ("reduce_scattered_per_step", 1),
        "c10d::allreduce_": ("all_reduced_per_step", 0),
    }

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = dict.fromkeys((kind for kind, _ in self.KINDS.values()), 0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name in self.KINDS:
            kind, position = self.KINDS[func._schema.name]
            tensors = args[position] if isinstance(args[position], list) else [args[position]]
            alone = position != 0 or kind.startswith("all_gathered")
            if alone and args[0].numel() == args[1].numel():
                tensors = []  # a group of one, which newer torch does not even call
            self.bytes[kind] += sum(tensor.numel() * tensor.itemsize for tensor in tensors)
        return func(*args, **(kwargs or {}))


def measure(case: str) -> tuple[dict[str, int], dict[str, int]]:
    """Train one step of a prepared net; return the plan's bytes, and what was held and communicated."""
    model = Net()
    prepare_fully_shard(model, {"auto_wrap_policy": "Block", "device_id": "cpu", **CASES[case]()})
    with _Counting() as counting:
        torch.autograd.backward(loss_of(model, batch(0, dist.get_rank())))
    found = dict(counting.bytes)
    found["sharded"] = sum(_storage(param) for param in model.parameters())
    found["gradients"] = sum(_storage(param.grad) for param in model.parameters() if param.grad is not None)
    return shard_plan(model).bytes.as_dict(), found


def _storage(tensor: torch.Tensor) -> int:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.numel() * local.itemsize
