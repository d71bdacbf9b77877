"""FSDP2's parameter groups and their collectives: watched, joined without computing, and reset.

The other half of :mod:`fsdp_migrate.torch_compat`, and under its rule: no other file asks which torch this is
or touches its privates. What is read here was checked on 2.6, 2.7, 2.9, 2.13 and 2.15.
"""
# ruff: noqa: SLF001 - what torch offers ends at setting flags

from __future__ import annotations

import inspect
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from fsdp_migrate.torch_compat import fsdp2_internals


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import nn


CollectiveKind = Literal["all-gather", "reduction"]

# What FSDP2 calls, up to 2.9 and later.
_COLLECTIVES = frozenset(
    {
        "all_gather_into_tensor",
        "all_gather_single",
        "all_reduce",
        "reduce_scatter_single",
        "reduce_scatter_tensor",
    }
)


class ParameterGroup:
    """What FSDP2 gathers and reduces together: the parameters of a unit, on one mesh."""

    def __init__(self, group: Any, names: dict[nn.Module, str]) -> None:
        self._group = group
        self.name = " + ".join(names[module] or "the root unit" for module in group.modules)
        self.parameters: list[Any] = list(group.fsdp_params)

    @property
    def sharded_parameters(self) -> list[nn.Parameter]:
        """The sharded parameters, whether or not they are gathered at present."""
        return [param.sharded_param for param in self.parameters]

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of the whole mesh: replicas, shards, and the dimensions of tensor parallelism."""
        mesh: Any = self.parameters[0].sharded_param.device_mesh
        return tuple(sorted(mesh.mesh.flatten().tolist()))

    @property
    def device_type(self) -> str:
        """The type of the device on which the parameters are gathered."""
        return str(self._group.device.type)

    @property
    def reduces(self) -> tuple[bool, bool]:
        """Whether backward reduces gradients, and whether it all-reduces them between replicas."""
        return bool(self._group.reduce_grads), bool(self._group.all_reduce_grads)

    @reduces.setter
    def reduces(self, value: tuple[bool, bool]) -> None:
        self._group.reduce_grads, self._group.all_reduce_grads = value

    @property
    def sums_in_full_precision(self) -> bool:
        """Whether sums of reduced gradients that wait for the all-reduce are as exact as gradients are."""
        policy = self._group.mp_policy
        reduce_dtype = policy.reduce_dtype or policy.param_dtype
        return reduce_dtype is None or all(
            torch.finfo(reduce_dtype).bits >= torch.finfo(param.dtype).bits
            for param in self.sharded_parameters
            if param.dtype.is_floating_point
        )

    @property
    def unsharded_gradient_bytes(self) -> int:
        """The bytes of the group's gradients while they are not reduced."""
        policy = self._group.mp_policy
        forced = policy.reduce_dtype or policy.param_dtype
        return sum(
            param.numel() * (forced or param.dtype).itemsize
            for param in self.sharded_parameters
            if param.requires_grad
        )

    @property
    def gathers_from_fewer_ranks(self) -> bool:
        """Whether the next all-gather is one of ``reshard_after_forward=<int>``, over a part of the ranks."""
        return bool(self._group.is_sharded_post_forward)

    def join_all_gather(self) -> None:
        """Take part in an all-gather for the sake of the other ranks, and free its result."""
        group = self._group
        came_from_fewer = self.gathers_from_fewer_ranks
        if group.is_unsharded:
            group._to_sharded()
        group.unshard(False)
        group.wait_for_unshard()
        if group._use_post_forward_mesh and not came_from_fewer:
            group._to_sharded_post_forward()  # the backward's gather needs this rank's part
        else:
            group._to_sharded()

    def join_reduction(self, used: Sequence[bool]) -> list[str]:
        """Take part in a reduction with the gradients that are here, and zeros for the rest of ``used``.

        Returns the names of parameters that have a gradient here and none elsewhere; then nothing is done.
        """
        group = self._group
        if not all(hasattr(param, "_unsharded_param") for param in self.parameters):
            group.unshard(False)  # sharded over one rank: nothing is sent
            group.wait_for_unshard()
        unexpected = []
        dtypes = {grad.dtype for param in self.parameters if (grad := _pending_gradient(param)) is not None}
        for param, is_used in zip(self.parameters, used, strict=True):
            if _pending_gradient(param) is not None:
                unexpected += [] if is_used else [str(param._param_fqn)]
            elif is_used:
                _set_zero_gradient(param, next(iter(dtypes), None))
        if not unexpected:
            group.post_backward()
        return unexpected

    def reshard(self) -> None:
        """Free the gathered parameters, if there are any."""
        self._group._to_sharded()

    def forget(self) -> None:
        """Drop gradients that wait for a reduction, and gathered parameters."""
        for param in self.parameters:
            if _accumulates_apart(param):
                param.unsharded_accumulated_grad = None
            if hasattr(param, "_unsharded_param"):
                param._unsharded_param.grad = None
        self._group._partial_reduce_output = None
        self._group._to_sharded()
        for param in self.parameters:
            param.free_unsharded_param()  # what a gather that broke off had allocated


def _accumulates_apart(param: Any) -> bool:
    """Tell whether gradients that wait in another dtype than theirs have a place of their own (to 2.14)."""
    return not isinstance(inspect.getattr_static(param, "unsharded_accumulated_grad", None), property)


def _set_zero_gradient(param: Any, dtype: torch.dtype | None) -> None:
    """Give a parameter a gradient of zeros, in the dtype of the others that wait in its group."""
    whole = param._unsharded_param
    if not _accumulates_apart(param):
        whole.grad = torch.zeros_like(whole, dtype=whole.grad_dtype)
    elif dtype in {None, whole.dtype}:
        whole.grad = torch.zeros_like(whole)
    else:
        param.unsharded_accumulated_grad = torch.zeros_like(whole, dtype=dtype)


def _pending_gradient(param: Any) -> torch.Tensor | None:
    if getattr(param, "unsharded_accumulated_grad", None) is not None:
        accumulated: torch.Tensor = param.unsharded_accumulated_grad
        return accumulated
    pending: torch.Tensor | None = param._unsharded_param.grad
    return pending


def parameter_groups(model: nn.Module) -> list[ParameterGroup]:
    """Return the model's parameter groups, each once, in the same order on every rank."""
    names = {module: name for name, module in model.named_modules()}
    groups = [group for state in _states(model) for group in _groups(state)]
    return [ParameterGroup(group, names) for group in groups]


def _states(model: nn.Module) -> list[Any]:
    """Return the FSDP2 states; a unit of several modules has one."""
    modules = (module for module in model.modules() if isinstance(module, FSDPModule))
    return list(dict.fromkeys(module._get_fsdp_state() for module in modules))


def _groups(state: Any) -> list[Any]:
    """Return a state's parameter groups: one or none before 2.12, several from then on."""
    several = getattr(state, "_fsdp_param_groups", None)
    if several is not None:
        return list(several)
    return [] if state._fsdp_param_group is None else [state._fsdp_param_group]


def _roots(model: nn.Module) -> list[Any]:
    return [state for state in _states(model) if state._is_root]


def initialise_lazily(model: nn.Module) -> None:
    """Do what the first forward would: find the root, on a rank that may never run one."""
    for state in _states(model):
        if state._is_root is None:
            state._lazy_init()


def end_backward(model: nn.Module) -> None:
    """Do what FSDP2 does when a backward ends, on a rank that only joined its collectives."""
    for root in _roots(model):
        context = root._state_ctx
        if getattr(context, "manual_backward_finalization_active", False) is None:
            context.manual_backward_finalization_active = False
        for state in context.all_states:
            for group in _groups(state):
                # As if its post-backward had run: without it, the callback would run it now.
                group._training_state = type(group._training_state).POST_BACKWARD
        root._root_post_backward_final_callback()


def reset_after_failure(model: nn.Module) -> None:
    """Put FSDP2 back to where it is between batches, after a forward or backward that broke off.

    Gradients that wait for a reduction are dropped; sharded ones are left as they are. torch 2.13 resets a
    part of this itself (``FSDPModule.reset_iter_state``). Only this rank is concerned.
    """
    for root in _roots(model):
        if hasattr(root, "_reset_iter_state"):
            root._reset_iter_state()
        else:
            _reset_iteration(root)
    for group in parameter_groups(model):
        group.forget()


def _reset_iteration(root: Any) -> None:
    if root._device.type != "cpu":
        root._device_handle.synchronize()
    comms, context = root._comm_ctx, root._state_ctx
    comms.all_gather_state = None
    for name in ("reduce_scatter_state", "all_reduce_state"):
        if hasattr(comms, name):
            setattr(comms, name, None)
    comms.post_forward_order.clear()
    for state in context.all_states:
        state._modules_to_run_forward.clear()
        state._training_state = type(state._training_state).IDLE
        for group in _groups(state):
            for name in ("_all_gather_result", "_post_reduce_event", "_all_reduce_state"):
                setattr(group, name, None)
            group._reshard_after_forward_event = None
            group._post_forward_indices.clear()
            group._training_state = type(group._training_state).IDLE
    context.iter_forward_root = None
    context.post_backward_final_callback_queued = False


class CollectiveWatcher(Protocol):
    """Who is told of the collectives of some parameter groups, before they are done."""

    def before_allocating(self, kind: CollectiveKind, parameters: Sequence[Any]) -> bool:
        """Hear of a collective that will be prepared; return whether it is one of the watched."""

    def before_sending(self) -> None:
        """Hear that it is prepared, so that nothing but the sending is left. May raise."""


_watchers: list[CollectiveWatcher] = []
_sending: list[CollectiveWatcher] = []


@contextmanager
def watch_collectives(watcher: CollectiveWatcher) -> Iterator[None]:
    """Tell ``watcher`` of every collective of FSDP2, in the order in which this rank does them.

    FSDP2's two functions that prepare and do a collective are replaced while something watches, and what
    they call of ``torch.distributed``. Without a watcher nothing is replaced.
    """
    if not _watchers:
        _install()
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)
        _sending.clear()
        if not _watchers:
            _uninstall()


_originals: dict[str, Any] = {}


def _install() -> None:
    groups, collectives = fsdp2_internals("_fsdp_param_group"), fsdp2_internals("_fsdp_collectives")
    kinds: dict[str, CollectiveKind] = {"foreach_all_gather": "all-gather", "foreach_reduce": "reduction"}
    for name, kind in kinds.items():
        _originals[name] = getattr(groups, name)
        setattr(groups, name, _watched(_originals[name], kind))
    _originals["dist"] = collectives.dist
    collectives.dist = _WatchedDistributed()


def _uninstall() -> None:
    groups = fsdp2_internals("_fsdp_param_group")
    for name in ("foreach_all_gather", "foreach_reduce"):
        setattr(groups, name, _originals.pop(name))
    fsdp2_internals("_fsdp_collectives").dist = _originals.pop("dist")


def _watched(function: Callable[..., Any], kind: CollectiveKind) -> Callable[..., Any]:
    def watched(parameters: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        watching = [watcher for watcher in _watchers if watcher.before_allocating(kind, parameters)]
        _sending[:] = watching
        try:
            return function(parameters, *args, **kwargs)
        finally:
            _sending.clear()

    return watched


class _WatchedDistributed:
    """``torch.distributed``, of which the first collective in each of FSDP2's functions is told."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(dist, name)
        if name not in _COLLECTIVES:
            return value

        def collective(*args: Any, **kwargs: Any) -> Any:
            watching = list(_sending)
            _sending.clear()  # an all-reduce that follows a reduce-scatter allocates nothing
            for watcher in watching:
                watcher.before_sending()
            return value(*args, **kwargs)

        return collective
