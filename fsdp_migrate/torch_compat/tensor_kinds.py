"""What a tensor is beside its values: a view, made of others, written to by a call."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_map


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def base_of_view(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the tensor that a view is a view of, or None."""
    return tensor._base


def is_made_of_tensors(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor is one only by name, and holds others: quantised ones do; not DTensors."""
    return not isinstance(tensor, DTensor) and bool(is_traceable_wrapper_subclass(tensor))


def dense_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the plain tensors that a tensor consists of: a DTensor's shard, a quantised one's parts, itself.

    They are the objects that it holds, not views of them. Sparse tensors are left out.
    """
    wrapper: Any = tensor
    if is_traceable_wrapper_subclass(wrapper):
        names, _ = wrapper.__tensor_flatten__()
        held = (getattr(wrapper, name) for name in names)
        return [part for each in held if isinstance(each, torch.Tensor) for part in dense_parts(each)]
    return [tensor] if tensor.layout == torch.strided else []


def follow_parts(tensor: torch.Tensor) -> None:
    """Give a wrapper, the same object, the device of its parts, which were moved; others are left alone.

    A DTensor of another device than its shard's cannot be detached, and so not be saved.
    """
    wrapper: Any = tensor
    if not is_traceable_wrapper_subclass(wrapper):
        return
    names, context = wrapper.__tensor_flatten__()
    held = {name: getattr(wrapper, name) for name in names}  # from 2.13 on a DTensor's mesh as well
    parts = [each for each in held.values() if isinstance(each, torch.Tensor)]
    for each in parts:
        follow_parts(each)
    if {each.device for each in parts} != {tensor.device}:
        tensor.data = type(wrapper).__tensor_unflatten__(held, context, tensor.size(), tensor.stride())


@dataclass(frozen=True)
class GatherHooks:
    """What a weight's class tells FSDP2 of how it is gathered, as torchao's for fp8 do (2.6 to 2.15).

    ``is_told_size``: ``fsdp_pre_all_gather`` takes more than the mesh, and so can pad. ``rows``: those of a
    weight before it is sharded, or of this rank's part under tensor parallelism.
    """

    kind: str
    has_both: bool
    is_told_size: bool
    rows: int


def gather_hooks(parameter: torch.Tensor) -> GatherHooks | None:
    """Return what a weight says of how it is gathered; None: nothing, so that FSDP2 sends its numbers."""
    with torch.no_grad():
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter.data
    before = getattr(local, "fsdp_pre_all_gather", None)
    both = [before is not None, hasattr(local, "fsdp_post_all_gather")]
    if not any(both):
        return None
    is_told_size = before is not None and len(inspect.signature(before).parameters) > 1
    return GatherHooks(type(local).__name__, all(both), is_told_size, local.shape[0] if local.ndim else 0)


def unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """Return the plain tensor in a wrapper around one of its own shape and dtype, sharing its memory.

    Such wrappers only say how a weight is gathered or computed with. Anything else is returned as it is.
    """
    if not is_made_of_tensors(tensor):
        return tensor
    like = [part for part in dense_parts(tensor) if (part.shape, part.dtype) == (tensor.shape, tensor.dtype)]
    return like[0].detach() if len(like) == 1 else tensor


def plain_zeros(tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return zeros of a tensor's shape, placed as it is, that are no wrapper: gradients are none.

    What fp8 training gathers cannot be asked for zeros like it.
    """
    dtype = dtype or tensor.dtype
    if isinstance(tensor, DTensor):
        with torch.no_grad():
            local = plain_zeros(tensor.to_local(), dtype)
        mesh, placements, size, stride = tensor.device_mesh, tensor.placements, tensor.size(), tensor.stride()
        return DTensor.from_local(local, mesh, placements, run_check=False, shape=size, stride=stride)
    if is_made_of_tensors(tensor):
        return torch.zeros(tensor.shape, dtype=dtype, device=tensor.device)
    return torch.zeros_like(tensor, dtype=dtype)


def map_leaves(change: Callable[[Any], Any], value: Any) -> Any:
    """Change every leaf of nested lists, tuples and dicts, such as a module's inputs."""
    return tree_map(change, value)


class _Writes(TorchDispatchMode):
    """Records the storages that operations write to."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.storages: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        names = [argument.name for argument in func._schema.arguments]
        written = {a.name for a in func._schema.arguments if a.alias_info and a.alias_info.is_write}
        for name, value in [*zip(names, args, strict=False), *(kwargs or {}).items()]:
            if name in written and isinstance(value, torch.Tensor):
                # Not by `data_ptr()`, which is 0 for every tensor of the meta device.
                self.storages.add(value.untyped_storage()._cdata)
        return func(*args, **(kwargs or {}))


def written_tensors(call: Callable[[], Any], tensors: Mapping[str, torch.Tensor]) -> set[str] | None:
    """Call something and return the names of the tensors that it wrote to, also through ``.data`` and views.

    Works on the meta device, where nothing is computed. None: the call failed, so that nothing is known.
    """
    with _Writes() as writes:
        try:
            call()
        except Exception:
            return None
    return {name for name, tensor in tensors.items() if tensor.untyped_storage()._cdata in writes.storages}
