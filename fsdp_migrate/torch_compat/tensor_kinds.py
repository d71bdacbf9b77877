"""What a tensor is beside its values: a view, made of others, written to by a call."""

from __future__ import annotations

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
