"""What a rank communicates: every collective of ``torch.distributed``, counted by kind, dtype and group.

A part of :mod:`fsdp_migrate.torch_compat`, and under its rule: no other file asks which torch this is or
touches its privates. FSDP1 and FSDP2 both call the functions of ``torch.distributed`` by that module's
name, in 2.6 to 2.15, so that replacing them there counts both.
"""

from __future__ import annotations

import functools
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.distributed as dist


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


Kind = Literal["all-gather", "reduce-scatter", "all-reduce", "broadcast"]

TrafficKey = tuple[Kind, str, int]
"""The kind of a collective, the dtype of what it sends, and the number of ranks in its group."""

# The name, the kind, and which argument is the whole of what goes over the wire: the gathered output, the
# unreduced input. Up to 2.12 and later ones have other names for the same.
_COLLECTIVES: tuple[tuple[str, Kind, int], ...] = (
    ("all_gather_into_tensor", "all-gather", 0),
    ("all_gather_single", "all-gather", 0),
    ("all_gather", "all-gather", 0),
    ("reduce_scatter_tensor", "reduce-scatter", 1),
    ("reduce_scatter_single", "reduce-scatter", 1),
    ("reduce_scatter", "reduce-scatter", 1),
    ("all_reduce", "all-reduce", 0),
    ("broadcast", "broadcast", 0),
)
# The same arguments by keyword: 0 is what is gathered into, or sent and received in place; 1 what is reduced.
_NAMES = {
    "output": 0,
    "output_tensor": 0,
    "tensor_list": 0,
    "tensor": 0,
    "input": 1,
    "input_tensor": 1,
    "input_list": 1,
}


class Traffic:
    """How many collectives a rank took part in, and how many bytes they were of, by kind."""

    def __init__(self) -> None:
        self.calls: Counter[TrafficKey] = Counter()
        self.bytes: Counter[TrafficKey] = Counter()

    def add(self, kind: Kind, tensors: list[torch.Tensor], group_size: int) -> None:
        """Count one collective."""
        key = (kind, str(tensors[0].dtype).removeprefix("torch."), group_size)
        self.calls[key] += 1
        self.bytes[key] += sum(each.numel() * each.element_size() for each in tensors)


@contextmanager
def count_traffic(traffic: Traffic) -> Iterator[None]:
    """Count the collectives of this process into ``traffic``. Groups of one rank send nothing."""
    originals = {name: getattr(dist, name) for name, _, _ in _COLLECTIVES if hasattr(dist, name)}
    within: list[str] = []  # newer functions may call older ones
    for name, kind, which in _COLLECTIVES:
        if name in originals:
            setattr(dist, name, _counted(originals[name], kind, which, traffic, within))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(dist, name, original)


def _counted(
    function: Callable[..., Any], kind: Kind, which: int, traffic: Traffic, within: list[str]
) -> Callable[..., Any]:
    @functools.wraps(function)
    def collective(*args: Any, **kwargs: Any) -> Any:
        if not within:
            named = next((value for name, value in kwargs.items() if _NAMES.get(name) == which), None)
            sent = args[which] if len(args) > which else named
            tensors = [sent] if isinstance(sent, torch.Tensor) else list(sent or ())
            size = dist.get_world_size(kwargs.get("group") or _group_among(args))
            if tensors and size > 1:
                traffic.add(kind, tensors, size)
        within.append(kind)
        try:
            return function(*args, **kwargs)
        finally:
            within.pop()

    return collective


def _group_among(args: tuple[Any, ...]) -> dist.ProcessGroup | None:
    return next((each for each in args if isinstance(each, dist.ProcessGroup)), None)
