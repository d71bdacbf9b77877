"""The only file that asks which torch this is, or touches its privates.

Checked against torch 2.6 to 2.15. Where torch has a public way, that is used; each private that is read says
what it was checked on.
"""

from __future__ import annotations

import copy
import importlib
import inspect
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    ActivationWrapper,
    checkpoint_wrapper,
    offload_wrapper,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_map


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


HAS_IGNORED_PARAMS = "ignored_params" in inspect.signature(fully_shard).parameters
"""torch 2.7: ``fully_shard`` can leave parameters alone."""


def accelerator_type() -> str | None:
    """Return the type of the accelerator that can be used here, such as ``cuda``, or None."""
    if not torch.accelerator.is_available():
        return None
    device = torch.accelerator.current_accelerator()
    return None if device is None else device.type


def device_count(device_type: str) -> int:
    """Return how many devices of the type this process can use; the CPU is one.

    A device that this build of torch does not know has modules without the functions that ask for it.
    """
    if device_type == "cpu":
        return 1
    try:
        module = torch.get_device_module(device_type)
    except RuntimeError:
        return 0
    is_available = getattr(module, "is_available", None)
    if is_available is not None and not is_available():
        return 0
    return int(module.device_count())


def make_current(device_type: str, index: int | None) -> None:
    """Make a device the current one, on which FSDP2 puts what it shards; nothing on the CPU."""
    if device_type != "cpu" and index is not None:
        torch.get_device_module(device_type).set_device(index)


def run_wrap_policy(
    policy: Any, root: nn.Module, ignored_modules: set[nn.Module]
) -> dict[nn.Module, dict[str, Any]] | None:
    """Run a policy object of torch's (``ModuleWrapPolicy``, ``CustomPolicy``).

    Returns each selected module with the FSDP1 arguments that the policy gives it, or None for a plain
    callable, which FSDP1 evaluates in another way. ``_Policy._run_policy`` is the same in 2.6 to 2.15.
    """
    run = getattr(policy, "_run_policy", None)
    if run is None:
        return None
    selected: dict[nn.Module, dict[str, Any]] = run(root, ignored_modules, {})
    return selected


def is_fsdp1_module(module: nn.Module) -> bool:
    """Tell whether FSDP1 has wrapped the module."""
    return isinstance(module, FullyShardedDataParallel)


def is_flat_parameter(parameter: nn.Parameter) -> bool:
    """Tell whether a parameter is one of FSDP1's flat parameters (2.6 to 2.15)."""
    return bool(getattr(parameter, "_is_flat_param", False))


def has_forward(module: nn.Module) -> bool:
    """Tell whether a module has a forward of its own, on which FSDP2 can hang its hooks."""
    return type(module).forward is not nn.Module.forward or "forward" in vars(module)


def meta_twin(module: nn.Module) -> nn.Module:
    """Copy a module without what is below it, with parameters and buffers of its own on the meta device."""
    twin = copy.copy(module)
    for table in ("_parameters", "_buffers"):
        vars(twin)[table] = dict(vars(module)[table])
    for name, tensor in list(twin.named_parameters(recurse=False)):
        setattr(twin, name, nn.Parameter(tensor.to("meta").clone(), requires_grad=tensor.requires_grad))
    for name, buffer in list(twin.named_buffers(recurse=False)):
        setattr(twin, name, buffer.to("meta").clone())
    return twin


def is_wrap_policy(choice: Any) -> bool:
    """Tell one of FSDP1's auto-wrap policies, or a callable of the same arguments, from other callables."""
    if hasattr(choice, "_run_policy"):
        return True
    try:
        parameters = inspect.signature(choice).parameters
    except (TypeError, ValueError):
        return False
    return {"recurse", "nonwrapped_numel"} <= set(parameters)


def is_compiled(module: nn.Module) -> bool:
    """Tell whether a module is compiled: in place, or as the wrapper of ``torch.compile`` (2.6 to 2.15)."""
    return "_orig_mod" in vars(module)["_modules"] or module._compiled_call_impl is not None


def checkpoint_wrapped(model: nn.Module) -> set[nn.Module]:
    """Return torch's wrappers of activation checkpointing, and what they wrap (2.6 to 2.15)."""
    wrappers = [module for module in model.modules() if isinstance(module, ActivationWrapper)]
    return {module for each in wrappers for module in (each, each._checkpoint_wrapped_module)}


def read_checkpoint_wrapper(wrapper: Any) -> dict[str, Any] | None:
    """Return the options in a ``checkpoint_wrapper``, ``offload_wrapper`` or partial of one; else None."""
    bound: dict[str, Any] = {}
    while isinstance(wrapper, partial):
        bound = {**wrapper.keywords, **bound}
        wrapper = wrapper.func
    if wrapper is offload_wrapper:
        return {"recompute": False, "offload_to_cpu": True}
    if wrapper is not checkpoint_wrapper:
        return None
    return {key: value for key, value in bound.items() if value is not None}


def base_of_view(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the tensor that a view is a view of, or None."""
    return tensor._base


def is_made_of_tensors(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor is one only by name, and holds others: quantised ones do; not DTensors."""
    return not isinstance(tensor, DTensor) and bool(is_traceable_wrapper_subclass(tensor))


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


def shard_modules(modules: list[nn.Module], arguments: Mapping[str, Any]) -> list[FSDPModule]:
    """Call ``fully_shard`` on one module, or on several as one group."""
    if len(modules) == 1:
        alone: FSDPModule = fully_shard(modules[0], **arguments)
        return [alone]
    group: list[FSDPModule] = fully_shard(modules, **arguments)
    return group


def mesh_of_groups(
    groups: list[dist.ProcessGroup], device_type: str, ranks: torch.Tensor, names: tuple[str, ...]
) -> DeviceMesh:
    """Make a mesh of existing process groups, one for each dimension, without making new groups."""
    if len(groups) == 1:
        return DeviceMesh.from_group(groups[0], device_type, mesh_dim_names=names)
    return DeviceMesh.from_group(groups, device_type, mesh=ranks, mesh_dim_names=names)


def group_of_this_rank_alone() -> dist.ProcessGroup:
    """Make a group of one for every rank, and return this rank's; a collective call of all ranks."""
    group, _ = dist.new_subgroups(group_size=1)  # type: ignore[no-untyped-call,unused-ignore]
    alone: dist.ProcessGroup = group
    return alone


def stop_backward_prefetch(modules: Iterable[FSDPModule]) -> None:
    """Switch FSDP2's implicit backward prefetch off.

    An empty list means the default order, so each unit prefetches itself, which is unsharded already and
    costs nothing (2.6 to 2.15).
    """
    for module in modules:
        module.set_modules_to_backward_prefetch([module])


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
    if size == 1:
        return False
    output = torch.empty(1)
    dist.reduce_scatter_tensor(output, torch.ones(size), op=dist.ReduceOp.AVG, group=group)
    return bool(output.item() != 1.0)


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
        return 1.0, float(size)

    def reduce_without_event(*args: Any, **kwargs: Any) -> Any:
        # A CPU stream records no event, and torch asserts that there is one wherever it keeps the
        # all-reduce's input alive. On the CPU the collective is over: nothing needs to be kept.
        results = list(foreach_reduce(*args, **kwargs))
        if results[4] is None:
            results[3] = None
        return tuple(results)

    summing_factors.mended_by_fsdp_migrate = True  # type: ignore[attr-defined]
    collectives._get_gradient_divide_factors = summing_factors
    param_group.foreach_reduce = reduce_without_event


def fsdp2_internals(name: str) -> Any:
    """Return one of the modules of which FSDP2 is made (2.6 to 2.15)."""
    return importlib.import_module(f"torch.distributed.fsdp._fully_shard.{name}")


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
