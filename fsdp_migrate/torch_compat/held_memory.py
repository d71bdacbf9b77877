"""What memory fake tensors would hold: every storage, from when it is made until it is freed.

A part of :mod:`fsdp_migrate.torch_compat`, and under its rule: no other file asks which torch this is or
touches its privates. torch's own ``MemTracker`` (``torch.distributed._tools``) does the same, but refuses a
second step of the same model, hooks each parameter, and tells apart what FSDP2 gathers and reduces in
``FSDPMemTracker`` alone, which patches units. Here the operators themselves tell what a storage is for: FSDP1
and FSDP2 call the same collectives in 2.6 to 2.15.
"""

from __future__ import annotations

import importlib
import itertools
import weakref
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


Kind = Literal[
    "parameters",
    "buffers",
    "gradients",
    "optimizer_state",
    "gathered",
    "reducing",
    "inputs",
    "activations",
    "temporary",
]
"""What a storage is for. ``reducing`` are whole gradients and the buffers of their reduction; ``temporary``
is what the optimizer takes while it steps; ``activations`` is all else that forward and backward make."""

_WEAK: frozenset[Kind] = frozenset({"activations", "temporary"})
"""Kinds that say only when something was made."""

# What an operator does to its arguments, by their places. An argument may be a list, or a list of lists.
_OPERATORS: dict[str, tuple[tuple[int, Kind], ...]] = {
    "c10d::_allgather_base_": ((0, "gathered"), (1, "gathered")),
    "c10d::allgather_": ((0, "gathered"), (1, "gathered")),
    "fsdp::all_gather_copy_in": ((0, "gathered"),),
    "c10d::_reduce_scatter_base_": ((0, "gradients"), (1, "reducing")),
    "c10d::reduce_scatter_": ((0, "gradients"), (1, "reducing")),
    "c10d::allreduce_": ((0, "reducing"),),
    "fsdp::chunk_cat": ((0, "reducing"),),
    "fsdp::chunk_cat_mixed_dtype": ((0, "reducing"),),  # in its place from 2.15 on
}
_OUTPUTS: dict[str, Kind] = {
    "fsdp::split_with_sizes_copy": "gathered",
    "fsdp::chunk_cat": "reducing",
    "fsdp::chunk_cat_mixed_dtype": "reducing",
}
_READS_A_NUMBER = "aten::_local_scalar_dense"
_FUSED_ATTENTION = "aten::_scaled_dot_product_"


@dataclass(eq=False, slots=True)
class _Held:
    """One storage. What it is for may be found out after it is gone."""

    kind: Kind
    size: int
    ref: weakref.ref[Any] | None = None


@dataclass(frozen=True)
class Moment:
    """What is held at one moment: bytes by what they are for, and during what."""

    phase: str
    held: dict[Kind, int]

    @property
    def total(self) -> int:
        """All bytes."""
        return sum(self.held.values())


class MemoryLog(TorchDispatchMode):
    """Logs what fake tensors would hold while it is entered.

    Args:
        granule: The allocator hands out multiples of that many bytes.
    """

    def __init__(self, *, granule: int = 1) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.granule = granule
        self.steps_optimizer = False
        self._is_on = True
        self._only_shapes = False
        self._attention = _Attention()
        self._fused = 0
        self._events: list[tuple[_Held, int]] = []
        self._phases: list[tuple[int, str]] = [(0, "")]
        self._held: dict[int, _Held] = {}

    def begin(self, phase: str, *, steps_optimizer: bool = False) -> None:
        """Say what begins now. While the optimizer steps, numbers that it reads from tensors are 1."""
        self._phases.append((len(self._events), phase))
        self.steps_optimizer = steps_optimizer

    def label(self, tensors: Iterable[torch.Tensor | None], kind: Kind) -> None:
        """Say what tensors are for. What is known already is not held twice."""
        for tensor in tensors:
            if tensor is not None:
                self._take(tensor.to_local() if isinstance(tensor, DTensor) else tensor, kind)

    @property
    def unfused_attention(self) -> int:
        """How often attention was computed without a kernel of its own, so that all scores were held."""
        return max(self._attention.calls - self._fused, 0)

    def at_rest(self, *, without: Iterable[Kind] = ()) -> int:
        """Return what is held in the end."""
        return self._moment(len(self._events) - 1, frozenset(without)).total

    def peak(self, *, since: str | None = None, without: Iterable[Kind] = ()) -> Moment:
        """Return the moment at which most is held.

        Args:
            since: The phase from whose first beginning on moments count; None: from the start.
            without: Kinds that are not counted, because they lie elsewhere.
        """
        skipped = frozenset(without)
        begins = [place for place, phase in self._phases if phase == since]
        first = begins[0] if begins else 0
        now = best = 0
        place = -1
        for number, (held, delta) in enumerate(self._events):
            if held.kind not in skipped:
                now += delta
            # One earlier: what is held when the phase begins, before anything is made in it, counts as well.
            if number >= first - 1 and now > best:
                best, place = now, number
        return self._moment(place, skipped)

    def _moment(self, place: int, skipped: frozenset[Kind]) -> Moment:
        counts: Counter[Kind] = Counter()
        for held, delta in self._events[: place + 1]:
            if held.kind not in skipped:
                counts[held.kind] += delta
        phase = next(name for begins, name in reversed(self._phases) if begins <= max(place, 0))
        return Moment(phase, {kind: size for kind, size in counts.items() if size})

    # What torch tells

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(issubclass(each, DTensor) for each in types):
            return NotImplemented  # it comes again, with local tensors
        name = func._schema.name
        # A fake tensor holds no number, and torch raises where one is read. Optimizers read such as their
        # count of steps, of which no size depends.
        if self.steps_optimizer and name == _READS_A_NUMBER and isinstance(args[0], FakeTensor):
            return _one(args[0])
        if name.startswith(_FUSED_ATTENTION) and not name.endswith("backward"):
            self._fused += 1
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            self._take(tensor)
        for place, kind in _OPERATORS.get(name, ()):
            if place < len(args):
                self._tell(args[place], kind)
        if name in _OUTPUTS:
            self._tell((result, *(kwargs or {}).values()), _OUTPUTS[name])
        return result

    def _tell(self, values: Any, kind: Kind) -> None:
        for tensor in _tensors(values):
            self._take(tensor, kind, firmly=False)

    def _take(self, tensor: torch.Tensor, kind: Kind | None = None, *, firmly: bool = True) -> None:
        """Log a tensor's storage if it is new, or as large as it is now, and what it is for."""
        if not isinstance(tensor, FakeTensor) or self._only_shapes:
            return
        storage = tensor.untyped_storage()
        held = self._held.get(storage._cdata)
        if held is None:
            held = _Held(kind or ("temporary" if self.steps_optimizer else "activations"), 0)
            held.ref = weakref.ref(storage, partial(self._forget, storage._cdata, held))
            self._held[storage._cdata] = held
        elif kind is not None and (firmly or held.kind in _WEAK):
            # What an operator hints at does not count against what the loop itself has said of a tensor.
            held.kind = kind
        self._resize(held, storage.nbytes())

    def _resize(self, held: _Held, nbytes: int) -> None:
        size = -(-nbytes // self.granule) * self.granule
        if size != held.size and self._is_on:
            self._events.append((held, size - held.size))
            held.size = size

    def _forget(self, key: int, held: _Held, ref: object) -> None:
        del ref
        if self._held.get(key) is held:  # a new storage may have the address of one that is gone
            del self._held[key]
        self._resize(held, 0)

    @contextmanager
    def watching(self) -> Iterator[MemoryLog]:
        """Log what is done in the context, also where a storage is freed or filled without an operator."""
        resize = torch.UntypedStorage.resize_

        def resized(storage: Any, size: int) -> Any:
            result = resize(storage, size)
            if (held := self._held.get(storage._cdata)) is not None:
                self._resize(held, storage.nbytes())
            return result

        # Both FSDPs free gathered parameters by resizing their storage to nothing: no operator tells of it.
        setattr(torch.UntypedStorage, "resize_", resized)  # noqa: B010 - mypy wants its very signature
        hook = register_module_forward_pre_hook(self._label_used)
        fsdp1: Any = importlib.import_module("torch.distributed.fsdp._runtime_utils")
        reduce_grad = fsdp1._reduce_grad

        def reduced(state: Any, handle: Any) -> Any:
            self._tell(handle.flat_param.grad, "reducing")
            return reduce_grad(state, handle)

        # To operators FSDP1's whole gradient is what any activation is; that it waits for a reduction is
        # known here.
        fsdp1._reduce_grad = reduced
        # A DTensor finds the shape of a result by fake tensors of its own, as large as the whole. In some
        # versions (2.11) this mode sees them.
        propagator: Any = ShardingPropagator
        find_shapes = propagator._propagate_tensor_meta_non_cached

        def shapes_found(*args: Any, **kwargs: Any) -> Any:
            self._only_shapes = True
            try:
                return find_shapes(*args, **kwargs)
            finally:
                self._only_shapes = False

        propagator._propagate_tensor_meta_non_cached = shapes_found
        try:
            with self, self._attention:
                yield self
        finally:
            # What is freed after this is freed by the end of the rehearsal, and by no run.
            self._is_on = False
            hook.remove()
            fsdp1._reduce_grad = reduce_grad
            propagator._propagate_tensor_meta_non_cached = find_shapes
            setattr(torch.UntypedStorage, "resize_", resize)  # noqa: B010

    def _label_used(self, module: torch.nn.Module, args: Any) -> None:
        """Take what a module computes with for gathered, where it is no parameter at rest."""
        del args
        for param in module.parameters(recurse=False):
            if not isinstance(param, DTensor):
                self._tell(param, "gathered")


class _Attention(TorchFunctionMode):
    """Counts the calls of torch's attention."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.calls += func is torch.nn.functional.scaled_dot_product_attention
        return func(*args, **(kwargs or {}))


def _one(tensor: torch.Tensor) -> int | float | bool:
    if tensor.dtype is torch.bool:
        return True
    return 1.0 if tensor.is_floating_point() else 1


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        yield from itertools.chain.from_iterable(map(_tensors, value))
