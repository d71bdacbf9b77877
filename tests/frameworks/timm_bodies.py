"""Ranks that let timm group the parameters of one model: alone, under FSDP1, and prepared."""

from __future__ import annotations

import warnings
from typing import Any

import timm.optim
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from fsdp_migrate import prepare_fully_shard
from tests.models import Net


Sizes = list[tuple[float, int]]


def group() -> dict[str, dict[str, Sizes]]:
    """Return the weight decay and the number of parameters of each group, by function and by model."""
    warnings.simplefilter("ignore")
    found: dict[str, dict[str, Sizes]] = {}
    for kind in ("plain", "FSDP1", "flat", "prepared"):
        arguments: dict[str, Any] = {"use_orig_params": kind != "flat", "device_id": torch.device("cpu")}
        model: Any = Net()
        if kind == "prepared":
            model = prepare_fully_shard(model, arguments)
        elif kind != "plain":
            model = FSDP(model, **arguments)
        made = {
            "param_groups_weight_decay": timm.optim.param_groups_weight_decay(model, 0.1),
            "param_groups_layer_decay": timm.optim.param_groups_layer_decay(model, 0.1),
            "create_optimizer_v2": timm.optim.create_optimizer_v2(
                model, opt="adamw", weight_decay=0.1
            ).param_groups,
        }
        for name, groups in made.items():
            sizes = [(float(each["weight_decay"]), len(each["params"])) for each in groups]
            found.setdefault(name, {})[kind] = sorted(sizes)
    return found
