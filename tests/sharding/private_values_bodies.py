"""Ask a prepared model for what is private to FSDP1, and has one value now."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.fsdp import (
    FlatParameter,
    _common_utils as common,
    _runtime_utils as running,
    _traversal_utils as traversal,
)

from fsdp_migrate.sharding.prepare import prepare_fully_shard
from tests.models import Net, batch, loss_of


def asked() -> dict[str, Any]:
    """Return what each gives, by its name: one value where it is the same of all."""
    model = prepare_fully_shard(Net(), {"auto_wrap_policy": "Block", "device_id": "cpu"})
    loss_of(model, batch(0, torch.distributed.get_rank())).backward()
    params, modules = list(model.parameters()), list(model.modules())
    try:
        running._lazy_init(model, model)
        raised = ""
    except AttributeError as error:
        raised = type(error).__name__
    return {
        "_is_fsdp_flattened": {common._is_fsdp_flattened(p) for p in params},
        "FlatParameter": {isinstance(p, FlatParameter) or type(p) is FlatParameter for p in params},
        "_is_flat_param": {hasattr(p, "_is_flat_param") for p in params},
        "DTensor": {isinstance(p, torch.distributed.tensor.DTensor) for p in params},
        "_FSDPState": {isinstance(m, common._FSDPState) for m in modules},
        "_get_module_fsdp_state": {common._get_module_fsdp_state(m) for m in modules},
        "_get_fsdp_states": traversal._get_fsdp_states(model),
        "_get_fsdp_handles": traversal._get_fsdp_handles(model),
        "_get_fsdp_states_with_modules": traversal._get_fsdp_states_with_modules(model),
        "_get_fsdp_root_states": running._get_fsdp_root_states(model),
        "clean_tensor_name": {common.clean_tensor_name(n) == n for n, _ in model.named_parameters()},
        "_lazy_init": raised,
    }
