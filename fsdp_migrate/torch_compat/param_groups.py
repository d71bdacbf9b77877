"""FSDP2's parameter groups: their collectives joined without computing, their sums mended, their state reset.

A part of :mod:`fsdp_migrate.torch_compat`, and under its rule: no other file asks which torch this is
or touches its privates. What is read here was checked on 2.6, 2.7, 2.9, 2.13 and 2.15.
"""
# What torch offers ends at setting flags.

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.fsdp import FSDPModule

from fsdp_migrate.torch_compat.evaluations import show_shards_after_evaluations
from fsdp_migrate.torch_compat.inference_mode import gather_outside_inference
from fsdp_migrate.torch_compat.module_kinds import leave_weights_in_place
from fsdp_migrate.torch_compat.pending_gradients import (
    accumulates_apart,
    drop_empty_gradients,
    drop_gradient,
    has_pending_gradient,
    pending_dtypes,
    pending_gradient,
    reduce_dtype,
    set_zero_gradient,
)
from fsdp_migrate.torch_compat.reduction_order import (
    forget_forwards,
    has_run,
    is_outside_backward,
    reduce_when_passed,
)
from fsdp_migrate.torch_compat.switched import keep_switches, undo_casts
from fsdp_migrate.torch_compat.unit_outputs import hook_all_outputs
from fsdp_migrate.torch_compat.whole_units import show_whole_units


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import nn


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
    def flat_shards(self) -> list[torch.Tensor]:
        """What is sent in an all-gather: each shard in one dimension, with its padding; they share memory."""
        return [param._sharded_param_data for param in self.parameters]

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
        return all(
            torch.finfo(reduce_dtype(param)).bits >= torch.finfo(param.sharded_param.dtype).bits
            for param in self.parameters
            if param.sharded_param.dtype.is_floating_point
        )

    @property
    def dtypes_of_gradients(self) -> set[tuple[str, str]]:
        """The dtypes in which backward makes gradients, and in which they wait for a reduction."""
        trained = [param for param in self.parameters if param.sharded_param.requires_grad]
        return {
            (
                _name_of(param.mp_policy.param_dtype or param.sharded_param.dtype),
                _name_of(reduce_dtype(param)),
            )
            for param in trained
        }

    @property
    def unsharded_gradient_bytes(self) -> int:
        """The bytes of the group's gradients while they are not reduced."""
        # Not the numel of the sharded parameter, which counts what tensor parallelism gave to other ranks.
        return sum(
            param._orig_size.numel() * reduce_dtype(param).itemsize
            for param in self.parameters
            if param.sharded_param.requires_grad
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
            group._to_sharded()  # torch's unshard() sends nothing for what is gathered, and others would wait
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
        # Zeros are made in the dtype of what waits here: in bf16 sums of earlier microbatches have another
        # one.
        dtypes = pending_dtypes(self.parameters)
        for param, is_used in zip(self.parameters, used, strict=True):
            if pending_gradient(param) is not None:
                unexpected += [] if is_used else [str(param._param_fqn)]
            elif is_used:
                set_zero_gradient(param, next(iter(dtypes), None))
        if not unexpected:
            group.post_backward()
        return unexpected

    def reduce_what_waits(self) -> None:
        """Reduce what the last backward left: all of it, where there was none, and on 2.6 unused units."""
        group = self._group
        waits = group._partial_reduce_output is not None or any(map(has_pending_gradient, self.parameters))
        if waits and group.reduce_grads:
            group.post_backward()
            # post_backward() leaves this, and the wait for its collectives, to the callback that ends a
            # backward. Here that has been, or there was no backward.
            group._training_state = type(group._training_state).IDLE
            group.finalize_backward()

    def mend_partial_sums(self) -> None:
        """Make sums that wait for the replicas right where microbatches use different parameters.

        torch 2.15 keeps them by parameter. Before, each microbatch's flat output was added to the last one's
        whatever was in either, and a unit that the last microbatch did not reach never all-reduced, so that
        its gradient was lost and came up in the next batch.
        """
        if _has_replicas(self._group) and not hasattr(self._group, "_partial_reduce_output_layout"):
            # A prepared model has `reduce_whole` in this place already, and goes on having it from within.
            whole = getattr(vars(self._group).get("post_backward"), "__self__", None)
            self._group.post_backward = _PartialSums(self._group, whole).post_backward

    def unmend_partial_sums(self) -> None:
        """Undo ``mend_partial_sums``."""
        sums = getattr(vars(self._group).get("post_backward"), "__self__", None)
        if isinstance(sums, _PartialSums):
            del self._group.post_backward
            if sums.whole is not None:
                self._group.post_backward = sums.whole.post_backward

    def reduce_whole(self, when_only_frozen: Callable[[str], None] = lambda unit: None) -> None:
        """Reduce, from now on, the whole unit where backward has reached a part of it, as FSDP1 does.

        FSDP1 reduces a unit's flat gradient, in which parameters that the loss did not use have zeros. FSDP2
        leaves those out: their gradients stay None, which optimizers with momentum or weight decay tell from
        zeros; and where ranks use different parameters of a unit, they reduce numbers that do not belong
        together. torch 2.13's ``set_reduce_scatter_unused_params`` goes further: it reduces units that a step
        skips, once they have run in another (``tests/sharding/test_torch_settings.py``), and cannot make
        zeros for weights of fp8. ``when_only_frozen`` is given the name of a unit of which a step used
        nothing that is trained, and something frozen: FSDP1's parameters were views of one, so that it made
        zeros there.
        """
        whole = _WholeReduction(self._group, partial(when_only_frozen, self.name))
        self._group.post_backward = whole.post_backward

    def reshard(self) -> None:
        """Free the gathered parameters, if there are any."""
        self._group._to_sharded()

    def forget(self) -> None:
        """Drop gradients that wait for a reduction, and gathered parameters."""
        for param in self.parameters:
            drop_gradient(param)
        self._group._partial_reduce_output = None
        self._group._to_sharded()
        for param in self.parameters:
            param.free_unsharded_param()  # what a gather that broke off had allocated


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class _WholeReduction:
    """The reduction of a unit's trained parameters together, in place of those that have a gradient."""

    def __init__(self, group: Any, when_only_frozen: Callable[[], None]) -> None:
        self._group = group
        self._when_only_frozen = when_only_frozen

    def post_backward(self, *args: Any) -> None:
        """Run torch's own, with zeros for what the loss did not use.

        Of a unit that has never run, torch (to 2.14) asks for the gradients that wait, and fails.
        """
        group = self._group
        if all(hasattr(param, "_unsharded_param") for param in group.fsdp_params):
            self.fill()
            type(group).post_backward(group, *args)
        else:
            group._training_state = type(group._training_state).POST_BACKWARD

    def fill(self) -> None:
        """Give gradients of zeros to the trained parameters without one, if others have one."""
        group = self._group
        # Before dtypes are compared: gradients of a module that its own forward casts (routers of experts)
        # have another one than those of the rest.
        undo_casts(group.fsdp_params)
        drop_empty_gradients(group.fsdp_params)
        if not group.reduce_grads:
            return
        if getattr(group, "_orig_dtype", torch.float32) is None:
            # The group's first forward found nothing to train; torch (2.10 to 2.14) then leaves gradients in
            # the dtype in which they came, also once something is trained.
            group._init_mp_dtypes()
        waiting = [param for param in group.fsdp_params if has_pending_gradient(param)]
        dtypes = pending_dtypes(waiting)
        if len(dtypes) > 1 and all(map(accumulates_apart, waiting)):
            # Earlier microbatches used some of the parameters, and the last one others.
            for param in waiting:
                param.to_accumulated_grad_if_needed()
            dtypes = pending_dtypes(waiting)
        for param in group.fsdp_params if waiting else ():
            has_gradient = param.sharded_param.requires_grad and param.sharded_param.numel() > 0
            if param not in waiting and has_gradient:
                set_zero_gradient(param, next(iter(dtypes)))
        if not waiting and self._has_used_only_frozen():
            self._when_only_frozen()

    def _has_used_only_frozen(self) -> bool:
        """Tell whether a unit that has run, and whose backward left nothing, has frozen parameters too."""
        shards = [param.sharded_param for param in self._group.fsdp_params]
        trained = [shard for shard in shards if shard.requires_grad and shard.numel() > 0]
        has_both = 0 < len(trained) < len(shards)
        return has_both and has_run(self._group) and all(shard.grad is None for shard in trained)


class _PartialSums:
    """Which parameters a group's partial sums are of, in place of torch up to 2.14, which does not know."""

    def __init__(self, group: Any, whole: _WholeReduction | None) -> None:
        self._group = group
        self.whole = whole
        self._waiting: list[Any] = []

    def post_backward(self, *args: Any) -> None:
        """Run torch's own, with zeros for parameters of which only earlier microbatches had gradients."""
        group = self._group
        if self.whole is not None:
            self.whole.fill()
        if group.reduce_grads and self._waiting:
            reduced = [param for param in group.fsdp_params if has_pending_gradient(param)]
            if reduced or group.all_reduce_grads:
                self._fill(reduced)
        before = group._partial_reduce_output
        # Asked before: torch's own takes the gradients.
        taken = [param for param in group.fsdp_params if has_pending_gradient(param)]
        type(group).post_backward(group, *args)
        if group._partial_reduce_output is None:
            self._waiting = []
        # Which parameters earlier sums are of is not known if they were made before this was put in.
        elif group.reduce_grads and taken and (before is None or self._waiting):
            self._waiting = taken

    def _fill(self, reduced: list[Any]) -> None:
        group, waiting = self._group, self._waiting
        dtypes = pending_dtypes(reduced)
        for param in waiting:
            if param not in reduced:
                set_zero_gradient(param, next(iter(dtypes), None))
        union = [param for param in group.fsdp_params if param in reduced or param in waiting]
        if len(union) > len(waiting):
            stream = group.comm_ctx.reduce_scatter_stream
            # torch adds partial sums up on this stream, and goes on with them there.
            stream.wait_stream(group.device_handle.current_stream())
            with torch.no_grad(), group.device_handle.stream(stream):
                group._partial_reduce_output = _laid_out(group._partial_reduce_output, waiting, union)


def _laid_out(sums: torch.Tensor, waiting: list[Any], union: list[Any]) -> torch.Tensor:
    """Return flat sums of some parameters as those of more, with zeros for the others."""
    sizes = [param.padded_sharded_param_size.numel() for param in waiting]
    by_param = dict(zip(map(id, waiting), sums.split(sizes), strict=True))
    parts = [
        by_param[id(param)]
        if id(param) in by_param
        else sums.new_zeros(param.padded_sharded_param_size.numel())
        for param in union
    ]
    return torch.cat(parts)


def _has_replicas(group: Any) -> bool:
    """Tell whether a group's gradients are all-reduced: HSDP, and replication alone since 2.12."""
    return hasattr(group.mesh_info, "replicate_process_group")


def parameter_groups(model: nn.Module) -> list[ParameterGroup]:
    """Return the model's parameter groups, each once, in the same order on every rank."""
    names = {module: name for name, module in model.named_modules()}
    groups = [group for state in _states(model) for group in _groups(state)]
    return [ParameterGroup(group, names) for group in groups]


def reduce_as_fsdp1(model: nn.Module, when_only_frozen: Callable[[str], None] = lambda unit: None) -> None:
    """Reduce, from now on, each unit as a whole, once a backward, and leave its inputs alone.

    A backward that broke off, and a first forward under inference mode, do no harm to what comes after; and
    what units return may be any object. What is set to be trained on whole parameters stays set.
    ``when_only_frozen`` is given the name of a unit of which a step used nothing that is trained, and
    something frozen, each time.
    """
    for group in parameter_groups(model):
        group.reduce_whole(when_only_frozen)
    groups = [group for state in _states(model) for group in _groups(state)]
    _add_up_before_rounding(groups)
    reduce_when_passed(groups)
    keep_switches(groups)
    # After `keep_switches`, whose methods call those of the class: these wrap what stands on the instances,
    # and would be lost under them.
    gather_outside_inference(groups)
    hook_all_outputs(_states(model))
    show_whole_units(model, groups)
    show_shards_after_evaluations(model, groups)
    recover_before_forward(model)
    leave_weights_in_place(model)


def _add_up_before_rounding(groups: list[Any]) -> None:
    """Round gradients to a narrower dtype when they are reduced, as FSDP1 does.

    A parameter that is used several times gets several: torch 2.15 rounds each, and then adds them up.
    """
    for param in (param for group in groups for param in group.fsdp_params):
        if hasattr(type(param), "unsharded_grad_dtype"):
            param.init_unsharded_param = partial(_init_unsharded, param, param.init_unsharded_param)


def _init_unsharded(param: Any, init: Callable[[], None]) -> None:
    init()
    computed = param.param_dtype or param.orig_dtype
    if param.reduce_dtype is not None and param.reduce_dtype.itemsize < computed.itemsize:
        param._unsharded_param.grad_dtype = computed


def recover_before_forward(model: nn.Module) -> None:
    """Put FSDP2 back, before a forward, if the last backward broke off with an error that the script caught.

    Units in which it broke off would take the forward for a recomputation of theirs, and run with the
    parameters of the step before; and nothing would be reduced that FSDP2 reduces when a backward ends, for
    the broken one had promised to.
    """
    states = _states(model)

    def recover(module: nn.Module, args: Any) -> None:
        del args
        if states[0]._state_ctx.post_backward_final_callback_queued and is_outside_backward():
            reset_after_failure(module)

    if states:  # the root's comes first, and all share what is asked for
        # Before FSDP2's own hook, which would take this forward for a recomputation of the broken step.
        model.register_forward_pre_hook(torch.compiler.disable(recover), prepend=True)


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


@contextmanager
def without_resets(model: nn.Module) -> Iterator[None]:
    """Let modules be moved, cast and loaded in a context in which whole parameters stand in for the shards.

    After ``module.to()`` and ``load_state_dict`` FSDP2 takes what stands in a module for a shard, and raises
    where it is no DTensor.
    """
    every = [param for state in _states(model) for group in _groups(state) for param in group.fsdp_params]
    params = [param for param in every if "reset_sharded_param" not in vars(param)]
    for param in params:
        param.reset_sharded_param = lambda: None
    try:
        yield
    finally:
        for param in params:
            del param.reset_sharded_param


def _roots(model: nn.Module) -> list[Any]:
    return [state for state in _states(model) if state._is_root]


def initialise_lazily(model: nn.Module) -> None:
    """Do what the first forward would: find the root, on a rank that may never run one."""
    # The model's own comes first, and makes those below it no roots.
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
    groups = parameter_groups(model)
    sharded = [(param, param.grad) for group in groups for param in group.sharded_parameters]
    for root in _roots(model):
        if hasattr(root, "_reset_iter_state"):
            root._reset_iter_state()
        else:
            _reset_iteration(root)
    forget_forwards(group for state in _states(model) for group in _groups(state))
    for group in groups:
        group.forget()
    for param, grad in sharded:
        param.grad = grad  # torch 2.15 drops these, too


def _reset_iteration(root: Any) -> None:
    if root._device.type != "cpu":
        root._device_handle.synchronize()
    comms, context = root._comm_ctx, root._state_ctx
    comms.all_gather_state = None
    for name in ("reduce_scatter_state", "all_reduce_state"):
        if hasattr(comms, name):
            setattr(comms, name, None)
    for name in ("reduce_scatter_states", "_last_post_reduce_events"):
        getattr(comms, name, []).clear()
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
