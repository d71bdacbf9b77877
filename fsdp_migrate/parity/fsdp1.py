"""From a config to torch's own ``FullyShardedDataParallel``: the run that is compared with."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    FullyShardedDataParallel as FSDP,
    MixedPrecision,
    ShardingStrategy,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy, always_wrap_policy, size_based_auto_wrap_policy

from fsdp_migrate.config import AlwaysWrap, ClassWrap, FSDP1Config, SizeWrap
from fsdp_migrate.errors import ModelError
from fsdp_migrate.mapping import map_config
from fsdp_migrate.sharding.ignored import resolve_ignored
from fsdp_migrate.sharding.resolve import resolve_dtype
from fsdp_migrate.sharding.wrap import resolve_classes


if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from fsdp_migrate import config as our_config


_REFUSED = "FSDP1 itself refuses this model with these arguments"
_FROZEN = (
    "with `use_orig_params: false`, its default, it trains all parameters of a unit or none, and some of "
    "this model are frozen, `{}` for one. Set `use_orig_params: true` in the config, as the run under FSDP1 "
    "must have it"
)
_HYBRID = {"HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"}


def wrap_in_fsdp1(model: nn.Module, arguments: Mapping[str, Any]) -> FSDP:
    """Wrap a model as :func:`fsdp1_arguments` says.

    Raises:
        ModelError: FSDP1 itself refuses it. torch's own message says neither where, nor what to do.
    """
    frozen = next((name for name, param in model.named_parameters() if not param.requires_grad), None)
    try:
        return FSDP(model, **arguments)
    except ValueError as error:
        # Frozen and trained parameters would be one flat parameter, which is trained or not.
        is_flat = "requires_grad" in str(error) and not arguments.get("use_orig_params")
        name = frozen if is_flat else None
        why = str(error).rstrip(".") if name is None else _FROZEN.format(name)
        raise ModelError(f"{_REFUSED}: {why}.", fqn=name) from None


def settle_config(config: FSDP1Config, device: torch.device) -> tuple[FSDP1Config, tuple[str, ...]]:
    """Return the config that both runs are given on these ranks, and what was changed for that.

    Only where they run changes: the device, and on one machine the groups of the hybrid strategies.
    """
    notes: list[str] = []
    changes: dict[str, Any] = {}
    if config.device_mesh is None:
        changes["device_id"] = str(device)
        if config.device_id is not None and str(config.device_id) != changes["device_id"]:
            notes.append(f"`device_id` is {config.device_id}; both ran on {device.type}.")
    if config.sharding_strategy in _HYBRID and config.process_group is None and config.device_mesh is None:
        ranks = dist.get_world_size()
        # Two replicas where that goes: 2 x 2 ranks add up in one order, and so compare bit for bit.
        replicas = 2 if ranks % 2 == 0 and ranks > 2 else 1
        changes["device_mesh"] = init_device_mesh(device.type, (replicas, ranks // replicas))
        notes.append(f"{config.sharding_strategy} ran as {replicas} x {ranks // replicas} ranks.")
    return config.updated(**changes), tuple(notes)


def fsdp1_arguments(
    config: FSDP1Config, model: nn.Module, device: torch.device
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the keyword arguments of ``FullyShardedDataParallel``, and what FSDP1 cannot do here.

    Raises:
        ConfigError: A name in the config is not in the model.
        WrapPolicyError: A class is not in the model.
    """
    notes: list[str] = []
    found: dict[str, Any] = {
        "sharding_strategy": ShardingStrategy[config.sharding_strategy],
        "auto_wrap_policy": _policy(config.auto_wrap_policy, model),
        "mixed_precision": _precision(config.mixed_precision, model),
        "backward_prefetch": (
            None if config.backward_prefetch is None else BackwardPrefetch[config.backward_prefetch]
        ),
        "device_id": device,
    }
    for name in ("process_group", "device_mesh", "param_init_fn", "forward_prefetch", "limit_all_gathers"):
        found[name] = getattr(config, name)
    found["use_orig_params"] = config.use_orig_params
    found.update(_ignored(config, model))
    offloads = config.cpu_offload is not None and config.cpu_offload.offload_params
    if device.type == "cpu":
        # FSDP1 refuses both on the CPU; offloading computes the same, and every rank has one seed.
        for name, is_on in (("cpu_offload", offloads), ("sync_module_states", config.sync_module_states)):
            if is_on:
                notes.append(
                    f"FSDP1 ran without `{name}`, which it cannot do on the CPU; values are the same."
                )
    else:
        found["cpu_offload"] = CPUOffload(offload_params=True) if offloads else None
        found["sync_module_states"] = config.sync_module_states
    return found, tuple(notes)


def _policy(policy: Any, model: nn.Module) -> Any:
    if isinstance(policy, ClassWrap):
        return ModuleWrapPolicy(set(resolve_classes(policy.classes, model)))
    if isinstance(policy, SizeWrap):
        return partial(size_based_auto_wrap_policy, min_num_params=policy.min_num_params)
    return always_wrap_policy if isinstance(policy, AlwaysWrap) else policy


def _precision(precision: our_config.MixedPrecision | None, model: nn.Module) -> MixedPrecision | None:
    if precision is None:
        return None
    ignored = resolve_classes(precision.module_classes_to_ignore, model, required=False)
    return MixedPrecision(
        param_dtype=resolve_dtype(precision.param_dtype),
        reduce_dtype=resolve_dtype(precision.reduce_dtype),
        buffer_dtype=resolve_dtype(precision.buffer_dtype),
        keep_low_precision_grads=precision.keep_low_precision_grads,
        cast_forward_inputs=precision.cast_forward_inputs,
        cast_root_forward_inputs=precision.cast_root_forward_inputs,
        _module_classes_to_ignore=ignored,
    )


def _ignored(config: FSDP1Config, model: nn.Module) -> dict[str, Any]:
    if not config.ignored_modules and not config.ignored_states:
        return {}
    modules, params = resolve_ignored(model, map_config(config)[0])
    if modules and params == {each for module in modules for each in module.parameters()}:
        return {"ignored_modules": list(modules)}
    return {"ignored_states": list(params)}
