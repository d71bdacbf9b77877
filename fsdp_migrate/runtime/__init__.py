"""What FSDP1 offered at run time, for models that FSDP2 has sharded.

Everything takes a model of :func:`~fsdp_migrate.prepare_fully_shard`, or one that plain
``fully_shard`` has sharded; ``docs/runtime.md`` puts each FSDP1 call beside its successor. A model that
stays FSDP1's is left to FSDP1's own methods.
"""

from __future__ import annotations

import functools
import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method

from fsdp_migrate.arguments import FLAG, NOTHING, NUMBER, TEXT, check_arguments, whole_number_from
from fsdp_migrate.errors import ConfigError, ModelError, ProcessGroupError
from fsdp_migrate.runtime import fsdp1_models
from fsdp_migrate.runtime.clipping import clip_grad_norm_
from fsdp_migrate.runtime.full_params import summon_full_params
from fsdp_migrate.runtime.full_tensors import named_full_tensors
from fsdp_migrate.runtime.offloading import offloaded
from fsdp_migrate.runtime.optimizer_states import full_optimizer_state_dict, optim_state_dict_to_load
from fsdp_migrate.runtime.sharded import require_units
from fsdp_migrate.runtime.state_dicts import (
    full_state_dict,
    load_full_state_dict,
    load_model_state_dict,
    sharded_state_dict,
)
from fsdp_migrate.runtime.weights import clone_parameters, ema_update, swapped_parameters
from fsdp_migrate.sharding.told_in_training import tell_where_gradients_add_up
from fsdp_migrate.sharding.zeroed import forget_what_is_zeroed
from fsdp_migrate.torch_compat import devices, param_groups, unit_state
from fsdp_migrate.torch_compat.process_groups import end_process_group


if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch


__all__ = [
    "clip_grad_norm_",
    "clone_parameters",
    "ema_update",
    "end_process_group",
    "full_optimizer_state_dict",
    "full_state_dict",
    "grad_scaler",
    "load_full_state_dict",
    "load_model_state_dict",
    "named_full_tensors",
    "no_sync",
    "offloaded",
    "optim_state_dict_to_load",
    "register_forward_methods",
    "sharded_state_dict",
    "summon_full_params",
    "swapped_parameters",
]

_registered: WeakKeyDictionary[nn.Module, set[str]] = WeakKeyDictionary()


@contextmanager
def no_sync(model: nn.Module) -> Iterator[None]:
    """Accumulate gradients in a context without reducing them, as FSDP1's ``model.no_sync()`` did.

    The first backward after the context reduces what has accumulated. Gradients are FSDP1's bit for bit,
    except where they are reduced in a wider dtype than that of the parameters (bfloat16 parameters, float32
    reduction): FSDP1 accumulated in the parameters' dtype, FSDP2 does in the wider one, which loses less and
    takes the memory of it. In both, whole gradients are held until they are reduced, or thrown away:
    ``optimizer.zero_grad()`` and ``model.zero_grad()`` drop them, as FSDP1's did. FSDP2 keeps them out of
    ``.grad``, so torch's two functions are told of it, from the first ``no_sync`` of a process on; a loop of
    ``p.grad = None``, and an optimizer whose own ``zero_grad`` does not call torch's, do not reach them.

    ``set_requires_gradient_sync`` of FSDP2 keeps its setting until it is set again; this puts back what each
    unit had, also after an error, and in nested contexts. Under HSDP neither the reduce-scatter nor the
    all-reduce happens. Parameters are sharded again after each backward; FSDP1 kept them whole between
    microbatches under SHARD_GRAD_OP, as ``model.set_reshard_after_backward(False)`` does.

    Args:
        model: The model, or a part of one that holds units.

    Raises:
        ModelError: The model holds no unit.

    Example:
        >>> import torch, torch.distributed as dist
        >>> from fsdp_migrate import prepare_fully_shard
        >>> from fsdp_migrate.runtime import end_process_group
        >>> store = dist.HashStore()
        >>> dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        >>> model = prepare_fully_shard(nn.Linear(2, 2, bias=False), {"device_id": "cpu"})
        >>> with no_sync(model):
        ...     model(torch.ones(1, 2)).sum().backward()
        >>> model.weight.grad is None
        True
        >>> model(torch.ones(1, 2)).sum().backward()
        >>> model.weight.grad.full_tensor().tolist()
        [[2.0, 2.0], [2.0, 2.0]]
        >>> end_process_group()
    """
    if fsdp1_models.is_fsdp1(model):
        with model.no_sync():
            yield
        return
    require_units(model, "no_sync")
    before = [(group, group.reduces) for group in param_groups.parameter_groups(model)]
    tell_where_gradients_add_up(model, (group for group, _ in before))
    forget_what_is_zeroed(model)
    for group, _ in before:
        group.reduces = (False, False)
    try:
        yield
    finally:
        for group, flags in before:
            group.reduces = flags


def register_forward_methods(model: nn.Module, *methods: str) -> None:
    """Let methods other than ``forward`` use parameters, such as ``generate`` or ``encoder.encode``.

    FSDP2 gathers a unit's parameters when the unit is called. A method that uses parameters itself finds
    shards, and fails. A registered one gathers them first and shards them again afterwards, gradients
    included, as a forward does. Under FSDP1 such methods ran in ``summon_full_params``.

    A method of a module that is no unit gathers the parameters of the unit that the module belongs to. A
    method that only calls the model (``self(...)``), as most ``generate`` methods do, needs no registering;
    it does no harm. All ranks must call the method, and as many forwards in it: where sequences end earlier
    on one rank, it has to go on (``synced_gpus=True`` in Hugging Face's ``generate``).

    Changes: the method, on this object only. Registering it again changes nothing.

    Args:
        model: The sharded model.
        methods: Names of methods, each relative to ``model``, with dots to reach into it.

    Raises:
        ModelError: There is no such method, or no unit above it; nothing is registered then.

    Example:
        >>> import torch, torch.distributed as dist
        >>> from fsdp_migrate import prepare_fully_shard
        >>> from fsdp_migrate.runtime import end_process_group
        >>> class Embedder(nn.Linear):
        ...     def embed(self, x):
        ...         return x @ self.weight
        >>> store = dist.HashStore()
        >>> dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        >>> model = prepare_fully_shard(Embedder(2, 2), {"device_id": "cpu"})
        >>> register_forward_methods(model, "embed")
        >>> tuple(model.embed(torch.ones(1, 2)).shape)
        (1, 2)
        >>> end_process_group()
    """
    require_units(model, "register_forward_methods")
    for path in methods:
        check_arguments(TEXT, methods=path)
    found = [_find_method(model, path) for path in methods]
    for module, owner, name in found:
        registered = _registered.setdefault(module, set())
        if name in registered:
            continue
        registered.add(name)
        if module is owner:
            register_fsdp_forward_method(module, name)
        else:
            _register_through(owner, module, name)


def _find_method(model: nn.Module, path: str) -> tuple[nn.Module, nn.Module, str]:
    """Return the module of a method, the nearest unit at or above it, and the method's name."""
    prefix, _, name = path.rpartition(".")
    owner: nn.Module | None = None
    module = model
    for part in (None, *filter(None, prefix.split("."))):
        child = module if part is None else getattr(module, part, None)
        if not isinstance(child, nn.Module):
            msg = f"`{path}` is no method of the {type(model).__name__}: it has no module `{prefix}`."
            raise ModelError(msg, fqn=path)
        module = child
        owner = module if isinstance(module, FSDPModule) else owner
    if not callable(getattr(module, name, None)):
        msg = f"`{path}` is no method of the {type(model).__name__}: {type(module).__name__} has no `{name}`."
        raise ModelError(msg, fqn=path)
    if owner is None:
        msg = f"No unit of the model holds `{path}`: fully_shard was called below it only."
        raise ModelError(msg, fqn=path)
    return module, owner, name


def _register_through(owner: nn.Module, module: nn.Module, name: str) -> None:
    """Run a method of a module that is no unit as a method of its unit, which gathers the parameters."""
    method = getattr(module, name)
    # Several modules below one unit may have a method of this name.
    through = f"_{name}_of_{id(module):x}"
    setattr(owner, through, method)
    register_fsdp_forward_method(owner, through)

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(owner, through)(*args, **kwargs)

    setattr(module, name, call)


def grad_scaler(
    device: str | None = None,
    *,
    init_scale: float = 2.0**16,
    growth_factor: float = 2.0,
    backoff_factor: float = 0.5,
    growth_interval: int = 2000,
    enabled: bool = True,
    process_group: dist.ProcessGroup | None = None,
) -> torch.amp.GradScaler:
    """Return a gradient scaler for float16 training, in place of FSDP1's ``ShardedGradScaler``.

    A ``torch.amp.GradScaler``, with its methods and its ``state_dict``, whose ranks agree: if any gradient
    overflows on any of them, all skip the step and lower the scale. torch's own fails where plain gradients
    (ignored parameters) are among sharded ones, agrees on one mesh only, and refuses float16 gradients,
    which ``ShardedGradScaler`` took.

    Args:
        device: The type of the device, such as ``cuda``. None: the accelerator that is there, or ``cpu``.
        init_scale: The scale at first.
        growth_factor: What the scale is multiplied by after ``growth_interval`` steps without overflow.
        backoff_factor: What it is multiplied by after an overflow.
        growth_interval: See ``growth_factor``.
        enabled: False: scale nothing, and step always.
        process_group: The ranks that agree. None: all of them.

    Returns:
        The scaler.

    Raises:
        ConfigError: A number is out of range.
        ProcessGroupError: It is enabled, and no process group is initialised.

    Example:
        >>> grad_scaler("cpu", enabled=False).is_enabled()
        False
    """
    if enabled and not dist.is_initialized():
        msg = "`grad_scaler` needs a process group: its ranks agree. Call `init_process_group()` first."
        raise ProcessGroupError(msg)
    check_arguments(TEXT | NOTHING, device=device)
    check_arguments(FLAG, enabled=enabled)
    check_arguments(whole_number_from(1), growth_interval=growth_interval)
    _check_factor(0, math.inf, init_scale=init_scale)
    _check_factor(1, math.inf, growth_factor=growth_factor)
    _check_factor(0, 1, backoff_factor=backoff_factor)
    return unit_state.AgreeingGradScaler(
        device or devices.accelerator_type() or "cpu",
        process_group=process_group,
        init_scale=init_scale,
        growth_factor=growth_factor,
        backoff_factor=backoff_factor,
        growth_interval=growth_interval,
        enabled=enabled,
    )


def _check_factor(above: float, below: float, **factors: float) -> None:
    check_arguments(NUMBER, **factors)
    for name, factor in factors.items():
        if not above < factor < below:
            bounds = f"above {above}, and finite" if below == math.inf else f"between {above} and {below}"
            raise ConfigError(f"`{name}` is {factor!r}; expected a number {bounds}.", field=name)
