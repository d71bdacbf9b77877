"""What FSDP2 needs to train rightly on the CPU: gloo's averages, and streams of torch 2.6."""

from __future__ import annotations

import importlib
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from fsdp_migrate.torch_compat.fsdp2 import fsdp2_internals
from fsdp_migrate.torch_compat.process_groups import wait_until_threads_rest


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch.distributed.device_mesh import DeviceMesh


def mend_gloo_averaging(mesh: DeviceMesh, modules: Iterable[FSDPModule]) -> bool:
    """Make gradients right on gloo where torch's averaging is not. Return whether anything was mended.

    gloo's reduce-scatter with ``ReduceOp.AVG`` silently sums up to torch 2.8, and its all-reduce refuses it,
    so that FSDP2's float32 and bfloat16 gradients on the CPU are world-size times too large. Whether it does
    here is asked of gloo itself, by a collective of two numbers for each dimension of the mesh: every rank of
    the mesh must call this. Where FSDP2 can be told to sum and divide (2.8 and later), the units are told;
    before that the two functions that choose the division are replaced, for gloo groups only.
    """
    groups = [group for group in mesh.get_all_groups() if _is_gloo(group, mesh.device_type)]
    broken = [_sums_instead_of_averaging(group) for group in groups]
    if not any(broken):
        return False
    units = list(modules)
    if hasattr(FSDPModule, "set_force_sum_reduction_for_comms"):
        # Each unit: torch (2.8 to 2.15) does not hand this setting down to the units below.
        for unit in units:
            unit.set_force_sum_reduction_for_comms(True)
    else:
        _replace_division()
        _SUMMING_GROUPS.update(group.group_name for group in groups)
    return True


def averages_by_sum(mesh: DeviceMesh) -> bool:
    """Tell whether gradients over a mesh must be summed and divided: gloo has no scaled reduction."""
    return any(_is_gloo(group, mesh.device_type) for group in mesh.get_all_groups())


def _is_gloo(group: dist.ProcessGroup, device_type: str) -> bool:
    # get_backend() says "undefined" of a group made without naming a backend, and one name of several.
    return f"{device_type}:gloo" in dist.get_backend_config(group).split(",")


def _sums_instead_of_averaging(group: dist.ProcessGroup) -> bool:
    size = dist.get_world_size(group)
    # Over one rank a sum is the mean: what is left to go wrong is that gloo refuses.
    if size == 1:
        return _refuses_averages(group)
    # The mean of ones is 1, and their sum the number of ranks.
    output = torch.empty(1)
    # By the name of torch 2.13 on, where the older one warns every user that it is deprecated.
    reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
    reduce_scatter(output, torch.ones(size), op=dist.ReduceOp.AVG, group=group)
    return bool(output.item() != 1.0)


def _refuses_averages(group: dist.ProcessGroup) -> bool:
    """Tell whether an all-reduce of a group of one rank fails, as it does with gloo up to torch 2.8."""
    try:
        dist.all_reduce(torch.ones(1), op=dist.ReduceOp.AVG, group=group)
    except RuntimeError:
        # gloo's thread may not have put the refused work away yet, and a barrier would fail by its error.
        wait_until_threads_rest()
        return True
    return False


_SUMMING_GROUPS: set[str] = set()


def _replace_division() -> None:
    """Replace, once, what torch 2.6 and 2.7 use to average (``_fsdp_collectives``, ``_fsdp_param_group``)."""
    collectives, param_group = fsdp2_internals("_fsdp_collectives"), fsdp2_internals("_fsdp_param_group")
    factors: Callable[..., Any] = collectives._get_gradient_divide_factors
    if getattr(factors, "mended_by_fsdp_migrate", False):
        return
    foreach_reduce: Callable[..., Any] = param_group.foreach_reduce

    def summing_factors(
        shard_group: dist.ProcessGroup, replicate_group: dist.ProcessGroup | None, *args: Any, **kwargs: Any
    ) -> Any:
        chosen = factors(shard_group, replicate_group, *args, **kwargs)
        if chosen[0] is not None or shard_group.group_name not in _SUMMING_GROUPS:
            return chosen  # float16 is divided before and after a sum already
        size = shard_group.size() * (1 if replicate_group is None else replicate_group.size())
        # Two Nones would mean AVG. These mean a sum that is divided by 1 before, and by all ranks afterwards.
        return 1.0, float(size)

    def reduce_without_event(*args: Any, **kwargs: Any) -> Any:
        # A CPU stream records no event, and torch asserts that there is one wherever it keeps the
        # all-reduce's input alive. On the CPU the collective is over: nothing needs to be kept.
        results = list(foreach_reduce(*args, **kwargs))
        # The fifth result is the all-reduce's event, the fourth its input.
        if results[4] is None:
            results[3] = None
        return tuple(results)

    summing_factors.mended_by_fsdp_migrate = True  # type: ignore[attr-defined]
    collectives._get_gradient_divide_factors = summing_factors
    param_group.foreach_reduce = reduce_without_event


def mend_replicas_on_cpu() -> None:
    """Let FSDP2 of torch 2.6 and 2.7 reduce over replicas on the CPU, whatever the backend."""
    if not hasattr(FSDPModule, "set_force_sum_reduction_for_comms"):
        _replace_division()


def mend_fsdp2_on_cpu(device_type: str) -> None:
    """Give torch 2.6 the two things without which FSDP2 does not train on the CPU; 2.7 has them itself.

    CPU streams get the methods that FSDP2 calls, doing nothing, and the copy of gathered parameters no longer
    counts as a change that autograd would object to in backward.
    """
    if device_type != "cpu" or hasattr(torch.cpu.Stream, "record_event"):
        return
    param_group = fsdp2_internals("_fsdp_param_group")
    copy_out: Callable[..., Any] = param_group.foreach_all_gather_copy_out

    preserve_version = importlib.import_module("torch.autograd")._unsafe_preserve_version_counter

    def quiet_copy_out(result: Any, params: Any, group: dist.ProcessGroup) -> None:
        with ExitStack() as stack:
            for output in [output for param in params for output in param.all_gather_outputs]:
                stack.enter_context(preserve_version(output))
            copy_out(result, params, group)

    def do_nothing(stream: Any, event: Any = None) -> None:
        del stream, event

    param_group.foreach_all_gather_copy_out = quiet_copy_out
    setattr(torch.cpu.Stream, "record_event", do_nothing)  # noqa: B010 - absent there, so mypy knows none
    setattr(torch.cpu.Stream, "wait_event", do_nothing)  # noqa: B010
