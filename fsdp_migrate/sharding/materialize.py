"""Models on the meta device: real tensors, unit by unit, with the values that FSDP1 would have given them.

FSDP1 materialises each unit just before it flattens it, inner units first, and in a unit breadth first
(``_init_utils._materialize_meta_module``); doing the same makes random initialisations the same to the last
bit, and holds one unsharded unit at a time. Other than FSDP1 this keeps real tensors that stand among meta
ones, restores ties, and refuses what nobody would initialise.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from fsdp_migrate.errors import ModelError
from fsdp_migrate.sharding.parallelism import parallel_placement
from fsdp_migrate.torch_compat import module_kinds, tensor_kinds


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Set as AbstractSet

    from torch.distributed.device_mesh import DeviceMesh

    from fsdp_migrate.sharding.parallelism import Placed
    from fsdp_migrate.sharding.plan import ShardPlan
    from fsdp_migrate.sharding.tying import Tie


def has_meta(module: nn.Module) -> bool:
    """Tell whether the module itself, not one below it, has a parameter or buffer on the meta device."""
    return any(tensor.is_meta for _, tensor in own_tensors(module))


def own_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the module's own parameters and buffers with their names; persistent or not."""
    yield from module.named_parameters(recurse=False)
    yield from module.named_buffers(recurse=False)


def modules_of_unit(roots: Iterable[nn.Module], stop: Callable[[nn.Module], bool]) -> list[nn.Module]:
    """Return the modules that a unit materialises, breadth first, not going below what ``stop`` says."""
    found: dict[nn.Module, None] = dict.fromkeys(roots)
    queue = collections.deque(found)
    while queue:
        for child in queue.popleft().children():
            if child not in found and not stop(child):
                found[child] = None
                queue.append(child)
    return list(found)


def check_materialization(model: nn.Module, plan: ShardPlan) -> None:
    """Check that every meta tensor will have a value, changing nothing.

    A ``param_init_fn`` is trusted; what rank 0 broadcasts afterwards needs no value before.

    Raises:
        ModelError: A module has no ``reset_parameters``, or it leaves a parameter or buffer as it was, or
            an ignored module is on the meta device.
    """
    init, overwritten = plan.config.param_init_fn, plan.config.broadcast_from_rank0
    ignored = {model.get_submodule(fqn) for fqn in plan.ignored_modules}
    checked: set[tuple[type, tuple[str, ...]]] = set()
    for fqn, module in model.named_modules():
        if not has_meta(module):
            continue
        if module in ignored:
            msg = f"Module `{fqn}` is ignored, but on the meta device. Materialise ignored modules yourself."
            raise ModelError(msg, fqn=fqn)
        if init is not None or overwritten:
            continue
        if not callable(getattr(module, "reset_parameters", None)):
            names = ", ".join(f"`{name}`" for name, tensor in own_tensors(module) if tensor.is_meta)
            msg = (
                f"Module `{fqn}` ({type(module).__name__}) has {names} on the meta device and no "
                "`reset_parameters()` to initialise them. Give it one, or pass `param_init_fn`."
            )
            raise ModelError(msg, fqn=fqn)
        kind = (type(module), tuple(name for name, tensor in own_tensors(module) if tensor.is_meta))
        if kind not in checked:  # a thousand equal layers need one look
            _check_reset(fqn, module)
            checked.add(kind)


def _check_reset(fqn: str, module: nn.Module) -> None:
    """Call ``reset_parameters`` on a copy, on the meta device, and see what it does not write to."""
    twin = module_kinds.meta_twin(module)
    tensors = dict(own_tensors(twin))
    # What is drawn here would shift the random numbers of the real initialisation, which are to be FSDP1's.
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        written = tensor_kinds.written_tensors(twin.reset_parameters, tensors)  # type: ignore[arg-type]
    if written is None:
        return
    now = dict(own_tensors(twin))
    replaced = {name for name, tensor in tensors.items() if now.get(name) is not tensor}
    meta = [name for name, tensor in own_tensors(module) if tensor.is_meta and tensor.numel()]
    untouched = [name for name in meta if name not in written and name not in replaced]
    if untouched:
        names = ", ".join(f"`{fqn}.{name}`" for name in untouched)
        msg = (
            f"{names}: on the meta device, and `{type(module).__name__}.reset_parameters()` does not set it. "
            "FSDP1 would have used whatever was in memory. Build such buffers on a real device, set "
            "them in `reset_parameters()`, pass `param_init_fn`, or broadcast them by `sync_module_states`."
        )
        raise ModelError(msg, fqn=fqn)


@torch.no_grad()
def materialize_modules(
    modules: Iterable[nn.Module], device: torch.device, init: Callable[[nn.Module], Any] | None
) -> None:
    """Give the modules' meta tensors memory on the device, and values.

    With ``init`` that is what it does, called for every module, as FSDP1 calls it; otherwise
    ``reset_parameters``, where a module has it. Real tensors keep their values.
    """
    every = list(modules)
    if not any(has_meta(module) for module in every):
        return
    for module in every:
        # `init` and `reset_parameters` fill all that a module has, also what was real.
        kept = {name: tensor.clone() for name, tensor in own_tensors(module) if not tensor.is_meta}
        if init is not None:
            before = {name: each.dtype for name, each in _own_parameters(module).items()}
            placed = {name: parallel_placement(each) for name, each in _own_parameters(module).items()}
            init(module)
            _check_initialised(module, before)
            _check_placed(module, placed)
        elif has_meta(module):
            _fill_empty(module, device)
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()
        for name, value in kept.items():
            current = getattr(module, name)
            if current.shape == value.shape and not current.is_meta:
                current.copy_(value)
        left = [name for name, tensor in own_tensors(module) if tensor.is_meta]
        if left:
            msg = (
                f"`param_init_fn` left {', '.join(left)} of a {type(module).__name__} on the meta device. "
                "It must give them memory, for example by `module.to_empty(device=..., recurse=False)`."
            )
            raise ModelError(msg)


def _own_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    return dict(module.named_parameters(recurse=False, remove_duplicate=False))


def _check_initialised(module: nn.Module, before: Mapping[str, torch.dtype]) -> None:
    """Check that a ``param_init_fn`` left a module the parameters that the plan is made for."""
    after = _own_parameters(module)
    lost = [name for name in before if not isinstance(after.get(name), nn.Parameter)]
    if lost or after.keys() - set(before):
        what = f"took away `{lost[0]}`" if lost else f"added `{min(after.keys() - set(before))}`"
        msg = (
            f"`param_init_fn` {what} of a {type(module).__name__}; expected the same parameters, with "
            "values. Change the model itself before it is given to prepare_fully_shard."
        )
        raise ModelError(msg)
    # Where there were several before, units were planned for them, or some are ignored.
    if len({each.dtype for each in after.values()}) > 1 >= len(set(before.values())):
        dtypes = ", ".join(f"`{name}` {str(each.dtype)[6:]}" for name, each in after.items())
        msg = (
            f"`param_init_fn` made parameters of a {type(module).__name__} of several dtypes: {dtypes}; "
            "FSDP1 and FSDP2 shard one dtype per unit. Make them of one."
        )
        raise ModelError(msg)


def _check_placed(module: nn.Module, before: Mapping[str, Placed | None]) -> None:
    """Check that a ``param_init_fn`` left parameters where tensor parallelism had placed them."""
    for name, each in _own_parameters(module).items():
        if parallel_placement(each) != before[name]:
            msg = (
                f"`param_init_fn` made `{name}` of a {type(module).__name__} anew, and not where tensor "
                "parallelism had placed it. Give it memory by `module.to_empty(device=..., recurse=False)`, "
                "which keeps DTensors, and write into it."
            )
            raise ModelError(msg)


def _fill_empty(module: nn.Module, device: torch.device) -> None:
    """Replace the module's own meta tensors by tensors of NaN, or of zero where there is none."""
    for name, parameter in list(module.named_parameters(recurse=False)):
        if parameter.is_meta:
            fresh = nn.Parameter(_unset(parameter, device), requires_grad=parameter.requires_grad)
            # What a wrapper holds is its own; what a script has set on a parameter stays.
            vars(fresh).update({key: each for key, each in vars(parameter).items() if key not in vars(fresh)})
            setattr(module, name, fresh)
    for name, buffer in list(module.named_buffers(recurse=False)):
        if buffer.is_meta:
            setattr(module, name, _unset(buffer, device))


def _unset(like: torch.Tensor, device: torch.device) -> torch.Tensor:
    value: float = float("nan") if like.is_floating_point() or like.is_complex() else -1
    if like.dtype in {torch.bool, torch.uint8}:
        value = 1
    if tensor_kinds.is_made_of_tensors(like):
        made = torch.empty_like(like, device=device)  # as `to_empty` does: of the same class
        tensor_kinds.unwrapped(made).fill_(value)
        return made
    return torch.full(like.shape, value, dtype=like.dtype, device=device)


def restore_ties(model: nn.Module, ties: Iterable[Tie]) -> None:
    """Make tied names one parameter again, the first one: each had memory of its own given to it."""
    for tie in ties:
        first = model.get_parameter(tie.names[0])
        for name in tie.names[1:]:
            owner, _, attribute = name.rpartition(".")
            module = model.get_submodule(owner)
            if getattr(module, attribute) is not first:
                setattr(module, attribute, first)


@torch.no_grad()
def broadcast_from_rank0(modules: Iterable[nn.Module], skip: AbstractSet[Any], mesh: DeviceMesh) -> None:
    """Give every rank the mesh's first rank's values of the modules' own tensors, one by one."""
    device = torch.device(mesh.device_type)
    done: set[torch.Tensor] = set()
    for module in modules:
        for _, tensor in own_tensors(module):
            if tensor in skip or tensor in done:
                continue
            done.add(tensor)
            local = tensor_kinds.unwrapped(tensor.to_local() if isinstance(tensor, DTensor) else tensor)
            value = local.detach().to(device)
            # From the inner dimension out: first to the ranks of the first rank's own group, then from each
            # of them to the ranks at its place in other groups. One broadcast a dimension reaches all.
            for dim in reversed(range(mesh.ndim)):
                dist.broadcast(value, group=mesh.get_group(dim), group_src=0)
            if value.data_ptr() != local.data_ptr():
                local.copy_(value)


def is_sharded(module: nn.Module) -> bool:
    """Tell whether a module is a unit already, below which nothing is materialised again."""
    return isinstance(module, FSDPModule)
