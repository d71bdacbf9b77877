"""``summon_full_params``: whole parameters under their own names, and what was written into them kept."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakSet

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor

from fsdp_migrate.arguments import FLAG, check_arguments
from fsdp_migrate.errors import ModelError, ModelStateError, UnsupportedFeatureError
from fsdp_migrate.runtime.fsdp1_models import holds_fsdp1
from fsdp_migrate.runtime.sharded import gather, is_first_of_its_shards, shard_like, show_shards, write_back
from fsdp_migrate.sharding.attributes import carry_marks
from fsdp_migrate.torch_compat.param_groups import without_resets


if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.utils.hooks import RemovableHandle


_summoned_modules: WeakSet[nn.Module] = WeakSet()


@dataclass
class _Summoned:
    """A sharded parameter, everywhere that it stands in the model, and the whole one that stands in."""

    sharded: DTensor
    places: list[tuple[nn.Module, str, str]] = field(default_factory=list)
    whole: nn.Parameter | None = None

    @property
    def name(self) -> str:
        return self.places[0][2]

    def put(self, parameter: Any) -> None:
        for module, attribute, _ in self.places:
            setattr(module, attribute, parameter)

    def found(self) -> list[Any]:
        """Return what stands there now, each object once."""
        objects = [getattr(module, attribute, None) for module, attribute, _ in self.places]
        return list({id(value): value for value in objects}.values())


@contextmanager
def summon_full_params(
    model: nn.Module,
    *,
    recurse: bool = True,
    writeback: bool = True,
    rank0_only: bool = False,
    offload_to_cpu: bool = False,
    with_grads: bool = False,
) -> Iterator[None]:
    """Show the whole parameters of a sharded model in a context, as FSDP1's method of that name did.

    In the context the model's parameters are plain ``nn.Parameter`` objects of their full shapes and own
    dtypes, under the same names and with the same ties; afterwards the sharded parameters are back, also
    after an error. What was written is then in the shards, as under FSDP1 also after an error; torch's own
    ``unshard()`` and ``reshard()`` lose it. Each rank keeps the part that it writes, so all write the same.

    Gathers one parameter after the other, and holds all of them until the end. All ranks must call it, and
    between steps. No forward of a unit may run in the context: under FSDP1 that silently damaged parameters,
    here it is an error.

    The model can be moved, and a full state loaded by ``load_state_dict``; the shards stay where they are.

    Changes: the values of parameters (and gradients), by what is written; ``requires_grad`` and attributes
    of a project's own, where they are set in the context. Leaves alone: the sharded parameters themselves,
    on which optimizers hold; buffers; parameters that are not sharded.

    Args:
        model: A model, or a part of one, that holds FSDP2 units.
        recurse: Show those of all units; False: only those outside of the units inside ``model``.
        writeback: Keep what is written into the parameters.
        rank0_only: Show them on the first rank of each shard group only, as FSDP1 did: under HYBRID_SHARD one
            of each node, under NO_SHARD every rank. The others keep seeing shards.
        offload_to_cpu: Show them on the CPU.
        with_grads: Show gradients as well; otherwise ``.grad`` is None in the context.

    Raises:
        ModelError: A parameter was replaced, in the context, by one of another shape or by several.
        ModelStateError: A forward or backward is under way, or starts in the context; or parameters are
            shown whole already.
        UnsupportedFeatureError: ``writeback`` and ``rank0_only``, or ``with_grads`` and ``offload_to_cpu``,
            which FSDP1 refused as well.

    Example:
        >>> model = nn.Linear(4, 2)  # a model that is not sharded shows its parameters anyway
        >>> with summon_full_params(model, writeback=False):
        ...     tuple(model.weight.shape)
        (2, 4)
    """
    flags = {"writeback": writeback, "rank0_only": rank0_only, "offload_to_cpu": offload_to_cpu}
    check_arguments(FLAG, recurse=recurse, with_grads=with_grads, **flags)
    _check_arguments(writeback, rank0_only, offload_to_cpu, with_grads)
    if holds_fsdp1(model):
        with FullyShardedDataParallel.summon_full_params(
            model, recurse=recurse, with_grads=with_grads, **flags
        ):
            yield
        return
    show_shards(model, "summon_full_params")
    modules = dict(_walk(model, recurse))
    if any(module in _summoned_modules for module in modules.values()):
        msg = "`summon_full_params` was called in the context of another one that shows the same parameters."
        raise ModelStateError(msg)
    summoned = _sharded_parameters(modules)
    visible = not rank0_only or is_first_of_its_shards([item.sharded for item in summoned])
    guards = [
        module.register_forward_pre_hook(_refuse_forward, prepend=True)
        for module in modules.values()
        if isinstance(module, FSDPModule)
    ]
    _summoned_modules.update(modules.values())
    try:
        for item in summoned:
            _show(item, "cpu" if offload_to_cpu else None, with_grads, visible)
        with without_resets(model):
            yield
    finally:
        _summoned_modules.difference_update(modules.values())
        _put_back(summoned, guards, writeback=writeback, with_grads=with_grads)


def _check_arguments(writeback: bool, rank0_only: bool, offload_to_cpu: bool, with_grads: bool) -> None:
    if writeback and rank0_only:
        msg = (
            "`writeback=True` and `rank0_only=True` contradict each other: what only one rank can write, the "
            "others cannot keep. Pass `writeback=False` to read, or `rank0_only=False` to write."
        )
        raise UnsupportedFeatureError(msg, feature="writeback of rank 0 only")
    if with_grads and offload_to_cpu:
        msg = (
            "`with_grads=True` and `offload_to_cpu=True` do not go together, as under FSDP1. Read gradients "
            "with `param.grad.full_tensor()`, or leave out `offload_to_cpu`."
        )
        raise UnsupportedFeatureError(msg, feature="with_grads and offload_to_cpu")


def _walk(model: nn.Module, recurse: bool) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules of the model by name, or those outside of the units inside it."""
    inner: list[str] = []
    for name, module in model.named_modules():
        if not recurse and name:
            if isinstance(module, FSDPModule):
                inner.append(f"{name}.")
            if any(f"{name}.".startswith(prefix) for prefix in inner):
                continue
        yield name, module


def _sharded_parameters(modules: dict[str, nn.Module]) -> list[_Summoned]:
    found: dict[int, _Summoned] = {}
    for prefix, module in modules.items():
        for attribute, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            if isinstance(parameter, DTensor):
                name = f"{prefix}.{attribute}" if prefix else attribute
                item = found.setdefault(id(parameter), _Summoned(parameter))
                item.places.append((module, attribute, name))
    return list(found.values())


def _show(item: _Summoned, device: str | None, with_grads: bool, visible: bool) -> None:
    """Gather a parameter, and its gradient, on all ranks; put them where they are to be seen."""
    whole = gather(item.sharded)
    grad = gather(item.sharded.grad) if with_grads and item.sharded.grad is not None else None
    if visible:
        # Gathered on the mesh's device, which is another one than the shard's where shards are offloaded.
        item.whole = nn.Parameter(whole.to(device or item.sharded.device), item.sharded.requires_grad)
        carry_marks(cast("nn.Parameter", item.sharded), item.whole)
        item.whole.grad = None if grad is None else grad.to(item.whole.device)
        item.put(item.whole)


def _put_back(
    summoned: list[_Summoned], guards: list[RemovableHandle], *, writeback: bool, with_grads: bool
) -> None:
    """Put the sharded parameters back, with what was written; then say what could not be kept."""
    for guard in guards:
        guard.remove()
    problems = []
    for item in summoned:
        current = item.found()
        item.put(item.sharded)
        if item.whole is not None:
            # FSDP1's parameters were the same objects inside and outside: what was frozen stayed so.
            item.sharded.requires_grad_(item.whole.requires_grad)
            carry_marks(item.whole, cast("nn.Parameter", item.sharded))
        # Said at the end: whatever is wrong with one parameter, all are sharded again first.
        if item.whole is None or not writeback:
            continue
        problem = _problem(item, current)
        if problem:
            problems.append(f"`{item.name}` {problem}")
            continue
        write_back(item.sharded, current[0])
        if with_grads:
            _write_gradient(item.sharded, current[0].grad)
    if problems:
        msg = f"Not everything that was written in `summon_full_params` could be kept: {'; '.join(problems)}."
        raise ModelError(msg)


def _problem(item: _Summoned, current: list[Any]) -> str | None:
    if len(current) > 1:
        return f"is tied, and has become {len(current)} parameters"
    value = current[0]
    if not isinstance(value, torch.Tensor) or isinstance(value, DTensor):
        return f"has become a {type(value).__name__}; expected a plain parameter"
    if value.shape != item.sharded.shape:
        return f"has the shape {list(value.shape)}; expected {list(item.sharded.shape)}"
    return None


def _write_gradient(sharded: DTensor, grad: torch.Tensor | None) -> None:
    if grad is None:
        sharded.grad = None
    elif sharded.grad is None:
        sharded.grad = shard_like(grad, sharded).to(sharded.device)
    else:
        write_back(sharded.grad, grad)


def _refuse_forward(module: nn.Module, args: object) -> None:
    del args
    msg = (
        f"The forward of a {type(module).__name__} was called in `summon_full_params`, which shows that "
        "unit's parameters whole: FSDP2 would shard them again, and lose what was written. Call it outside "
        "of the context; a method other than forward, such as `generate`, after `register_forward_methods`."
    )
    raise ModelStateError(msg)
